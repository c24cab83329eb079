"""--health-check: nodes that are ill take no part, and a job of one node ends with the reason."""

import os
import pathlib
import signal
import subprocess
import time

import pytest

import jobs
import nodes as lib

ALL_COME = "last_call_timeout=60"


def crun(*args, env=None, **more):
    return jobs.run([jobs.crun(), *args], env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}, **more)


# ---- one node ----

def test_a_check_that_succeeds(tmp_path):
    p = crun("--standalone", f"--log-dir={tmp_path / 'logs'}", "--health-check=echo looks fine; echo indeed >&2",
             "--no-python", "echo", "worker")
    assert p.returncode == 0 and p.stdout == "worker\n", p.stderr
    assert "crun: health check: looks fine\ncrun: health check: indeed\n" in p.stderr
    kept = list((tmp_path / "logs").glob("health_check_*.log"))
    assert len(kept) == 1 and kept[0].read_text() == "looks fine\nindeed\n"


@pytest.mark.parametrize("command, why", [("echo the link is down; exit 3", "exit code 3: the link is down"),
                                          ("kill -9 $$", "ended by SIGKILL"),
                                          ("/nowhere/check", "exit code 127"),
                                          ("sleep 60", "no result within 1 s (--health-check-timeout)")])
def test_a_check_that_fails(command, why):
    begin = time.monotonic()
    p = crun("--standalone", "--max-restarts=3", "--health-check-timeout=1" if "sleep" in command else "--health-check-timeout=50",
             f"--health-check={command}", "--no-python", "echo", "worker")
    assert p.returncode == 1 and "worker" not in p.stdout
    assert f"the health check of this node failed ({why}" in p.stderr
    assert time.monotonic() - begin < 30


def test_reason_is_in_the_history(tmp_path):
    crunctl, state = str(jobs.build_folder() / "launcher" / "crunctl"), {"XDG_STATE_HOME": str(tmp_path)}
    p = crun("--standalone", "--rdzv-id=ill", "--health-check=echo the link is down; exit 3", "--no-python", "true", env=state)
    assert p.returncode == 1
    shown = jobs.run([crunctl, "history", "ill"], env={**os.environ, **state}).stdout
    assert "the health check failed: exit code 3: the link is down" in shown, shown


def test_nothing_of_a_check_is_left(tmp_path):
    p = crun("--standalone", "--health-check-timeout=1", f"--health-check=sleep 3600 & echo $! > {tmp_path}/pid; wait", "--no-python", "true")
    assert p.returncode == 1
    pid = int((tmp_path / "pid").read_text())
    jobs.wait_for(lambda: not pathlib.Path(f"/proc/{pid}/cmdline").exists() or not pathlib.Path(f"/proc/{pid}/cmdline").read_bytes())


def test_before_each_generation(tmp_path):
    p = crun("--standalone", "--max-restarts=2", "--restart-pause=0", f"--health-check=echo x >> {tmp_path}/n; test $(wc -l < {tmp_path}/n) -lt 3",
             "--no-python", "sh", "-c", "echo run; exit 1")
    assert p.returncode == 1 and p.stdout == "run\nrun\n", p.stderr
    assert (tmp_path / "n").read_text() == "x\nx\nx\n" and "exit code 1" in p.stderr


def test_the_check_knows_the_group_rank():
    p = crun("--standalone", "--health-check=echo node ${GROUP_RANK-none}", "--no-python", "true", env={"GROUP_RANK": "7"})
    assert p.returncode == 0 and "crun: health check: node 0\n" in p.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_check(number, tmp_path):
    with lib.Nodes(tmp_path) as nodes:
        node = nodes.crun("--standalone", "--health-check=echo begun; exec sleep 3600", "--no-python", "true")
        node.wait_for("begun")
        child = jobs.children(node.pid)[0]
        node.signal(number)
        assert node.wait(20) == 1, node.text()
        jobs.wait_for(lambda: not pathlib.Path(f"/proc/{child}/cmdline").exists() or not pathlib.Path(f"/proc/{child}/cmdline").read_bytes())


def test_much_output_is_bounded():
    p = crun("--standalone", "--health-check=yes | head -c 1000000", "--no-python", "true")
    assert p.returncode == 0, p.stderr[-2000:]
    assert p.stderr.count("health check: y\n") == 200 and "its further lines are not shown" in p.stderr


# ---- the built-in check ----

@pytest.fixture
def driver(tmp_path):
    (tmp_path / "libnvidia-ml.so.1").symlink_to(jobs.build_folder() / "tests" / "fakes" / "libfake_nvml.so")
    environment = {name: value for name, value in os.environ.items() if name not in ("CUDA_VISIBLE_DEVICES", "FAKE_NVML")}

    def check(faults="", **more):
        return subprocess.run([jobs.crun(), "--check-node"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
                              env={**environment, "LD_LIBRARY_PATH": str(tmp_path), "FAKE_NVML": faults, "TMPDIR": str(tmp_path), **more})
    return check


@pytest.mark.parametrize("faults, more, why", [
    ("", {}, None),
    ("free=50 busy_ms=300", {}, None),  # memory of a process that was killed a moment ago
    ("recovery=1", {}, "GPU 1 needs a reset"),
    ("pending=1", {}, "GPU 1 has rows of memory to remap"),
    ("failed=1", {}, "GPU 1 has rows of memory that could not be remapped"),
    ("lost=1", {}, "GPU 1 does not answer"),
    ("xid=79", {}, "Xid 79"),
    ("", {"CRUN_CHECK_GPUS": "3"}, "2 GPUs are left, and there were 3 before"),
    ("failed=1", {"CUDA_VISIBLE_DEVICES": "0"}, None),
    ("failed=1", {"CUDA_VISIBLE_DEVICES": "GPU-00000001"}, "GPU 1"),
    ("", {"CRUN_CHECK_DISK_FREE": "4000000000"}, "MiB free"),
])
def test_builtin_check(driver, faults, more, why):
    p = driver(faults, **more)
    assert p.returncode == (1 if why else 0), p.stdout
    assert (why or "this node is fit: 2 NVIDIA GPUs") in p.stdout


def test_memory_that_does_not_come_back(driver):
    begin = time.monotonic()
    p = driver("free=50")
    assert p.returncode == 1 and "GPU 1 has 40.0 of 80.0 GiB free" in p.stdout
    assert 9 < time.monotonic() - begin < 40
    assert driver("free=50", CRUN_CHECK_GPU_FREE="40").returncode == 0


def test_a_value_that_is_no_number(driver):
    p = driver("", CRUN_CHECK_GPU_FREE="much")
    assert p.returncode == 2 and "percentage" in p.stdout


def test_a_gpu_that_is_gone_later(tmp_path):
    """The number of the first check holds for all further ones."""
    (tmp_path / "libnvidia-ml.so.1").symlink_to(jobs.build_folder() / "tests" / "fakes" / "libfake_nvml.so")
    script = f"rm {tmp_path}/libnvidia-ml.so.1; exit 1"  # the driver, and all GPUs with it
    p = crun("--standalone", "--max-restarts=1", "--restart-pause=0", "--health-check=builtin", "--no-python", "sh", "-c", script,
             env={"LD_LIBRARY_PATH": str(tmp_path), "FAKE_NVML": "gpus=4"})
    assert p.returncode == 1
    assert "health check: this node is fit: 4 NVIDIA GPUs" in p.stderr and "(exit code 1: 0 GPUs are left, and there were 4" in p.stderr


# ---- several nodes ----

def start(nodes, port, rank, check, script, *more, nnodes="2:3", conf=ALL_COME, **settings):
    return nodes.crun(f"--nnodes={nnodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job",
                      f"--rdzv-conf={conf}", f"--health-check={check}", *more, "--no-python", "sh", "-c", script, **settings)


def test_a_node_that_is_ill_from_the_start(tmp_path):
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        start(nodes, port, 0, "true", "echo RANK $RANK/$WORLD_SIZE")
        start(nodes, port, 1, "echo the link is down; exit 3", "echo RANK $RANK/$WORLD_SIZE")
        start(nodes, port, 2, "true", "echo RANK $RANK/$WORLD_SIZE")
        assert nodes.codes() == [0, 0, 0], nodes.texts()
        texts = [node.text() for node in nodes]
        for text in (texts[0], texts[2]):
            assert "/2\n" in text and "left out: " in text and "the link is down" in text
        assert "RANK" not in texts[1] and "the health check of this node failed" in texts[1]


def test_a_node_that_becomes_ill(tmp_path):
    """The rank fails on all nodes; then one of them is ill, and is not waited for."""
    port = lib.free_port()
    script = "echo RANK $RANK/$WORLD_SIZE IN $CRUN_GENERATION; test $CRUN_GENERATION -gt 0 && exit 0; test $RANK = 1 && exit 1; sleep 60"
    with lib.Nodes(tmp_path) as nodes:
        for rank in range(3):
            mark = tmp_path / f"checked{rank}"
            check = f"test ! -e {mark}; r=$?; touch {mark}; exit $r" if rank == 1 else "true"
            start(nodes, port, rank, check, script, "--max-restarts=1", "--shutdown-timeout=5", nnodes="2:3")
        begin = time.monotonic()
        assert nodes.codes() == [0, 0, 0], nodes.texts()
        assert time.monotonic() - begin < 60
        assert sum(node.text().count("/2 IN 1") for node in nodes) == 2, nodes.texts()


def test_an_ill_node_that_is_needed_checks_again(tmp_path):
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        start(nodes, port, 0, "true", "echo RANK $RANK/$WORLD_SIZE", nnodes="2")
        start(nodes, port, 1, f"test -e {tmp_path}/well", "echo RANK $RANK/$WORLD_SIZE", nnodes="2")
        list(nodes)[0].wait_for("left out: ")
        (tmp_path / "well").touch()
        assert nodes.codes() == [0, 0], nodes.texts()


def test_too_few_nodes_are_well(tmp_path):
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        start(nodes, port, 0, "true", "true", nnodes="2", conf="join_timeout=4")
        start(nodes, port, 1, "echo Xid 79; false", "true", nnodes="2", conf="join_timeout=4")
        assert nodes.codes() == [1, 1], nodes.texts()
        assert all("left out: " in node.text() and "Xid 79" in node.text() for node in nodes), nodes.texts()


def test_a_signal_while_the_node_is_checked(tmp_path):
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        start(nodes, port, 0, "true", "echo RANK $RANK/$WORLD_SIZE", nnodes="1:2", conf="last_call_timeout=3")
        jobs.wait_for(lambda: lib.can_connect(port))  # it serves the rendezvous: without that one the job ends
        second = start(nodes, port, 1, "echo begun; exec sleep 3600", "true", nnodes="1:2", conf="last_call_timeout=3")
        second.wait_for("begun")
        second.signal(signal.SIGTERM)
        assert second.wait(20) == 1, second.text()
        assert list(nodes)[0].wait(60) == 0, nodes.texts()
