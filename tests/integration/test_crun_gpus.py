"""A driver of the GPUs that hangs: crun gives it ten seconds, obeys signals meanwhile and leaves no process behind."""

import os
import pathlib
import signal
import subprocess
import time

import jobs
import pytest

if jobs.is_sanitized():
    pytest.skip("a sanitizer has to be the first library that is loaded", allow_module_level=True)


@pytest.fixture
def start(tmp_path):
    library = jobs.build_folder() / "tests" / "fakes" / "libfake_nvml.so"
    (tmp_path / "libnvidia-ml.so.1").symlink_to(library)
    started = []

    def start(*args):
        environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        p = subprocess.Popen([jobs.crun(), "--standalone", *args, "--no-python", "true"], stdin=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, text=True,
                             env={**environment, "LD_PRELOAD": str(library), "LD_LIBRARY_PATH": str(tmp_path),
                                  "FAKE_NVML": "hung=1"})
        started.append(p)
        return p

    yield start
    for p in started:
        p.kill()
        p.wait()


def has_ended(pid):
    """It is no process any more, or a zombie that nobody has waited for."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_signal_while_the_driver_hangs(start):
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        p = start("--nproc-per-node=gpu")
        jobs.wait_for(lambda: jobs.children(p.pid))
        child = jobs.children(p.pid)[0]
        p.send_signal(signal_number)
        assert p.wait(timeout=5) == 1
        jobs.wait_for(lambda: has_ended(child))


def test_driver_that_does_not_answer(start):
    begin = time.monotonic()
    p = start("--nproc-per-node=gpu")
    _, err = p.communicate(timeout=30)
    assert p.returncode == 1 and 9 < time.monotonic() - begin < 25
    lines = err.splitlines()
    assert len(lines) == 2 and "NVIDIA driver has not answered for 10 s" in lines[0] and "no usable NVIDIA or AMD GPU" in lines[1]


def test_killed_while_the_driver_hangs(start):
    p = start("--nproc-per-node=gpu")
    jobs.wait_for(lambda: jobs.children(p.pid))
    child = jobs.children(p.pid)[0]
    p.kill()
    jobs.wait_for(lambda: has_ended(child))
