"""tests/gpu/run itself, on an emulated card with a fake NCCL and on drivers that cannot be used: the gate, the parts, the reasons; its
report comes back whatever happens."""

import importlib
import json
import lzma
import os
import signal
import struct
import subprocess
import sys
import tarfile
import time
import zipfile

import pytest

import gpu_calls
import jobs
import strict

RUN = gpu_calls.RUN
PARTS = ("kernels", "curves", "mnist", "launcher", "memory", "nccl-2")  # of the call, those that take half a minute on two idle cores
needs_emulation = pytest.mark.skipif(bool(gpu_calls.why_not_emulated()), reason=str(gpu_calls.why_not_emulated()))


def module(name):
    """Of tests/gpu, which is no package."""
    sys.path.insert(0, str(RUN.parent))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(RUN.parent))


def run(part, folder, reports, *args, **environment):
    p = subprocess.run([RUN, part, folder, reports, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                       timeout=120, env={**os.environ, **environment})
    report = json.loads((reports / f"{part}.json").read_text())
    assert {"gpus", "nccl", "nccl_version"} <= set(report["machine"])
    assert (reports / f"{part}.md").read_text().count("\n| ") == len(report["results"]) + 2
    return p, report


# ------------------------------------------------------------------ the call

@needs_emulation
def test_the_call_on_an_emulated_card(tmp_path):
    """What travels, what comes back, and the short parts, under the limits of the machine with the GPU."""
    if jobs.is_sanitized():
        pytest.skip("a sanitizer has to be the first library that is loaded")
    tree = tmp_path / "tree"
    gpu_calls.copy_tree(tree)
    assert "bits of 4 of 4 kernel programs" in gpu_calls.prepare(tree, "--emulated")
    assert gpu_calls.tree_bytes(tree) <= gpu_calls.LIMIT_BYTES
    code, output, _ = gpu_calls.call(tree, "first-quarter", tmp_path / "reports", gpu_calls.emulated_card(tmp_path / "scratch"), *PARTS)
    report = json.loads((tmp_path / "reports/first-quarter.json").read_text())
    results = {r["name"]: r for r in report["results"]}
    assert code == 0, output
    assert list(report["parts"]) == ["gate", *PARTS] and not report["fallen"], output
    assert gpu_calls.first_line(tmp_path / "reports", "first-quarter").startswith("# first-quarter on Emulated card: ")
    assert all(results[f"kernels: kernel_{k}"]["crcs_compared"] > 0 for k in ("loss", "norm", "products", "step"))
    assert results["mnist: loss as on the CPU"]["relative_distance"] < 1e-3
    assert results["launcher: crunctl top --json shows the GPU"]["gpus"][0]["index"] == 0
    assert results["launcher: kill -9 of crun: the card's memory is free"]["during_mib"] == 100
    assert results["nccl-2: 2 ranks kill-early step 31: only the step in flight is lost"]["ok"]
    assert (tmp_path / "reports/dmon.log").read_text().count("\n") > 2


@pytest.fixture
def programs(tmp_path):
    """The real ones that the gate needs, in a tree as prepare leaves it but for the archive."""
    strict.skip_if(gpu_calls.why_no_plugin())
    tree = tmp_path / "tree"
    packed = tree / gpu_calls.PLACE
    packed.mkdir(parents=True)
    for name in module("gpu_prepare").SCRIPTS:
        (packed / name).symlink_to(RUN.parent / name)
    for name, program in (("train", jobs.train()), ("device_check", jobs.build_folder() / "tests/gpu/device_check"),
                          ("libcrw-cuda.so", jobs.build_folder() / "worker-runtime/libcrw-cuda.so")):
        (packed / name).symlink_to(program)
    return tree


@pytest.mark.parametrize("kind", list(gpu_calls.DRIVERS))
def test_a_driver_that_cannot_be_used(tmp_path, programs, kind):
    """The call ends at the gate. In the full length, with what prepare packs: tests/soak gpu-rehearsal."""
    gate = {"GPU_TEST_GATE_S": "4"} if kind == "hung" else {}  # the others end by themselves, on a busy machine later than that
    code, output, seconds = gpu_calls.call(programs, "first-quarter", tmp_path / "reports",
                                           {**gpu_calls.broken_driver(tmp_path / "scratch", kind), **gate}, limit_s=60)
    line = gpu_calls.first_line(tmp_path / "reports", "first-quarter")
    assert code == 1 and seconds < gpu_calls.GATE_S
    assert line.startswith("# first-quarter FAILED: ended at the gate: dropped steps: ") and gpu_calls.DRIVERS[kind] in line
    assert gpu_calls.DRIVERS[kind] in output
    results = json.loads((tmp_path / "reports/first-quarter.json").read_text())["results"]
    assert sorted(r["name"] for r in results) == ["gate: dropped steps", "gate: toy"] or kind == "hung", output  # both run at once


def test_nothing_works(tmp_path):
    """Without programs the call ends at the gate, and a line of each part has its reason."""
    (tmp_path / "empty").mkdir()
    p, report = run("first-quarter", tmp_path / "empty", tmp_path / "reports")
    assert p.returncode == 1 and list(report["parts"]) == ["gate"]
    assert report["headline"] == ("first-quarter FAILED: ended at the gate: dropped steps: error: cannot start "
                                  f"{tmp_path}/empty/device_check: No such file or directory")
    p, report = run("kernels", tmp_path / "empty", tmp_path / "reports")
    assert p.returncode == 1 and len(report["results"]) == 4
    assert all("No such file or directory" in r["why"] and not r["ok"] for r in report["results"])


CRUN_TABLE = """crun: rank 0 failed (exit code 1)
============================================================
train FAILED
Root Cause (first observed failure):
  error_file: /tmp/error.json
  traceback : {}
============================================================
"""


@pytest.mark.parametrize("output, why", [
    ("crun: OMP_NUM_THREADS is not set\ntrain: --backend cuda: there is no GPU: why\n" + CRUN_TABLE.format("other"),
     "train: --backend cuda: there is no GPU: why"),
    (CRUN_TABLE.format("rank 1 cannot connect"), "rank 1 cannot connect"),
    ("[==========] Running 9 test(s).\n[  ERROR   ] --- conv dw[17] is 3\n[   LINE   ] --- a.c:3: error: Failure!\n 9 FAILED TEST(S)\n",
     "conv dw[17] is 3 in a.c:3: error: Failure!"),
    ("vm:1:2 [0] NCCL INFO a\nvm:1:2 [0] init.cc:903 NCCL WARN Duplicate GPU detected\nlast\n",
     "vm:1:2 [0] init.cc:903 NCCL WARN Duplicate GPU detected"),
    ("[rank0]: Traceback (most recent call last):\n[rank0]:   File x\n[rank0]:     raise an error\n[rank0]: RuntimeError: CUDA is gone\n",
     "RuntimeError: CUDA is gone"),
    ("========= COMPUTE-SANITIZER\n========= Invalid __global__ read of size 4 bytes\n========= ERROR SUMMARY: 1 error\n",
     "========= Invalid __global__ read of size 4 bytes"),
    ("begun\nand ended\n", "and ended"),
    ("begun\nnot done after 4 s\n", "not done after 4 s"),
    ("RuntimeError: gone\nmore\nnot done after 4 s\n", "not done after 4 s: RuntimeError: gone"),
    ("", "it printed nothing"),
])
def test_the_sentence_that_explains(output, why):
    assert module("gpu_report").why_of(output) == why


def test_libraries_beside_pytorch(tmp_path, monkeypatch):
    """Where its wheels put them, of CUDA 12 and of 13."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    report = module("gpu_report")
    for name in ("nvidia/nccl/lib/libnccl.so.2", "nvidia/cu13/lib/libcublasLt.so.13"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    assert report.library_of_torch("libnccl.so.2") == str(tmp_path / "nvidia/nccl/lib/libnccl.so.2")
    assert report.library_of_torch("libcublasLt.so.1[23]") == str(tmp_path / "nvidia/cu13/lib/libcublasLt.so.13")
    assert report.library_of_torch("libother.so") is None


def test_missing_figures_explain_nothing(tmp_path):
    """A program that failed has written no file, and its own sentence is the reason."""
    judge = module("gpu_report").Report.judge

    def values(_output):
        raise FileNotFoundError("metrics")
    assert judge(1, "train: no GPU\n", values) == ({"why": "train: no GPU"}, False)
    assert judge(-11, "begun\n", None) == ({"why": "ended by signal 11: begun"}, False)
    assert judge(0, "train: fine\n", values) == ({"why": "no figures: FileNotFoundError('metrics')"}, False)


def test_prepare_names_what_is_missing(tmp_path):
    p = jobs.run([RUN, "prepare", tmp_path / "build", tmp_path / "folder"])
    assert p.returncode == 1
    for name in ("tests/gpu/device_check", "worker-runtime/libcrw-cuda.so", "launcher/crunctl"):
        assert f"{tmp_path}/build/{name} is not built" in p.stderr


@needs_emulation
def test_prepare_counts_what_travels(tmp_path, monkeypatch):
    prepare = module("gpu_prepare")
    own = prepare.tree_bytes()
    assert own > 1 << 20
    monkeypatch.setattr(prepare, "LIMIT_BYTES", own + 1000)
    monkeypatch.setattr(prepare, "copy_all", lambda *_: None)
    monkeypatch.setattr(prepare, "make_settings", lambda *_: None)
    monkeypatch.setattr(prepare, "write_crcs", lambda *_: 0)
    with pytest.raises(SystemExit, match="that is more than may travel"):
        prepare.prepare(jobs.build_folder(), tmp_path / "folder", None, True)


# ------------------------------------------------------------------ programs that hang, and a folder that is packed

def hang(folder, name):
    (folder / name).write_text("#!/bin/sh\necho begun\nexec sleep 100\n")
    (folder / name).chmod(0o755)


def test_time_is_up(tmp_path):
    """A program that hangs is ended, and what did not get its turn is in the report."""
    folder = tmp_path / "folder"
    folder.mkdir()
    hang(folder, "train_check")
    p, report = run("ours", folder, tmp_path / "reports", GPU_TEST_CALL_S="17")
    assert p.returncode == 1
    assert report["results"][0]["exit"] == 124 and "not done after" in report["results"][0]["why"]
    assert [(r["ok"], r["why"]) for r in report["results"][1:]] == [(None, "no time was left for it")] * 2
    assert report["fallen"] == ["ours"] and "did not get its turn: ours" in p.stdout


def test_the_report_is_there_after_every_line(tmp_path):
    """The first line is in the files while the second program hangs, for a caller that kills us."""
    folder, reports = tmp_path / "folder", tmp_path / "reports"
    folder.mkdir()
    (folder / "gpu_kernel_loss").symlink_to("/bin/true")
    for k in ("norm", "products", "step"):
        hang(folder, f"gpu_kernel_{k}")
    p = subprocess.Popen([RUN, "kernels", folder, reports], stdout=subprocess.PIPE, text=True, start_new_session=True,
                         env={**os.environ, "TMPDIR": str(tmp_path)})
    assert p.stdout.readline().startswith("ok     kernel_loss")
    try:
        jobs.wait_for(lambda: (reports / "kernels.md").exists() and "kernel_loss" in (reports / "kernels.md").read_text())
        assert [r["name"] for r in json.loads((reports / "kernels.json").read_text())["results"]] == ["kernel_loss"]
    finally:
        p.terminate()
        for pid in jobs.descendants(p.pid):
            os.kill(pid, signal.SIGKILL)
        p.kill()
        p.communicate()


def test_a_part_that_never_ends(tmp_path):
    """What a process that not even SIGKILL ends would do: the call ends all the same, with its report."""
    code = ("import pathlib, sys, time; sys.path.insert(0, sys.argv[1]); import gpu_parts, gpu_report; folder = pathlib.Path(sys.argv[2]); "
            "never = lambda r: (r.add('begun', True, 0), time.sleep(100)); "
            "gpu_report.Report('never', folder, folder, 4).run_part('never', never, 0, 100)")
    started = time.monotonic()
    p = subprocess.run([sys.executable, "-c", code, RUN.parent, tmp_path], timeout=90, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert p.returncode == 1 and time.monotonic() - started < 80
    report = json.loads((tmp_path / "never.json").read_text())
    assert [(r["name"], r["ok"]) for r in report["results"]] == [("begun", True), ("the call", False)]
    assert not list(tmp_path.glob("gpu-run-*"))
    assert report["headline"] == "never FAILED: the call did not come to its end in time (in part never)"


def first_line_of_failed_call(folder, tmp_path):
    p = subprocess.run([RUN, "first-quarter", folder, tmp_path / "reports"], capture_output=True, text=True, timeout=90,
                       env={**os.environ, "TMPDIR": str(tmp_path)})
    assert p.returncode == 1
    return gpu_calls.first_line(tmp_path / "reports", "first-quarter"), p


def test_an_archive_that_is_cut(tmp_path):
    """What the script itself cannot do is the first line of a report, too."""
    (tmp_path / "packed.tar.xz").write_bytes(lzma.compress(os.urandom(10000))[:5000])
    line, p = first_line_of_failed_call(tmp_path, tmp_path)
    assert line.startswith("# first-quarter FAILED: the script itself: ") and "Traceback" in p.stderr


def test_a_gate_that_breaks(tmp_path):
    """A failure of the gate's own code does not open the gate."""
    for name, output in (("device_check", '{"name": "is not for a figure"}'), ("train", "done")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{output}'\n")
        (tmp_path / name).chmod(0o755)
    line, p = first_line_of_failed_call(tmp_path, tmp_path)
    assert line.startswith("# first-quarter FAILED: ended at the gate: TypeError("), p.stdout
    assert "kernels" not in p.stdout


def test_a_job_ends_with_its_part(tmp_path):
    """Also where the part breaks: those behind it are alone on the card."""
    scripts = {"device_check": 'if [ $1 = memory ]; then kill -0 $(cat $PID) && exit 1; fi; echo \'{"fraction_of_copy": 1}\'',
               "train": "echo done", "crunctl": 'echo \'{"nodes": [\'',
               "crun": 'case "$*" in *" gpu "*|*world*) echo world 0;; *--check-node*) echo 0 NVIDIA GPU;; '
                       '*) echo step 1; echo $$ >$PID; exec sleep 60;; esac'}
    for name, script in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    _, report = run("second-call", tmp_path, tmp_path / "reports", "launcher", "memory", PID=str(tmp_path / "pid"))
    results = {r["name"]: r["ok"] for r in report["results"]}
    assert results["launcher: the part itself"] is False and results["memory: optimizers"], report["results"]


@pytest.mark.parametrize("part, names", [("memory", []), ("pytorch", ["compile_us_fp32", "compile_us_tf32"])])
def test_what_is_compiled_beside_a_second_call(tmp_path, part, names):
    """Nothing, unless PyTorch's part is to come, which then waits for it."""
    for name in module("gpu_prepare").SCRIPTS:
        (tmp_path / name).write_bytes((RUN.parent / name).read_bytes())
    (tmp_path / "torch_speed.py").write_text("import os, sys; open(os.environ['RAN'], 'a').write(' '.join(sys.argv[1:]) + '\\n')\n")
    for name, output in (("device_check", '{"fraction_of_copy": 1}'), ("train", "done")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{output}'\n")
        (tmp_path / name).chmod(0o755)
    subprocess.run([sys.executable, tmp_path / "run", "second-call", tmp_path, tmp_path / "reports", part], timeout=90, capture_output=True,
                   env={**os.environ, "RAN": str(tmp_path / "ran"), "TMPDIR": str(tmp_path)})
    report = json.loads((tmp_path / "reports/second-call.json").read_text())
    assert list(report["parts"]) == ["gate", *(["wait"] if names else []), part]
    ran = (tmp_path / "ran").read_text().splitlines() if (tmp_path / "ran").exists() else []
    assert sorted(line.split()[3] for line in ran if line.endswith(" 5")) == names, ran


def test_packed(tmp_path):
    """What prepare packs is unpacked for the call, outside the folder, and gone behind it."""
    packed, folder, scratch = tmp_path / "packed", tmp_path / "folder", tmp_path / "scratch"
    for made in (packed, folder, scratch):
        made.mkdir()
    (packed / "gpu_kernel_loss").write_text("#!/bin/sh\npwd -P >&2\nexec test -e $(dirname $0)/gpu_kernel_loss\n")
    (packed / "gpu_kernel_loss").chmod(0o755)
    with tarfile.open(folder / "packed.tar.xz", "w:xz") as tar:
        tar.add(packed, ".")
    _, report = run("kernels", folder, tmp_path / "reports", TMPDIR=str(scratch))
    assert sorted(r["ok"] for r in report["results"]) == [False, False, False, True]
    assert [f.name for f in folder.iterdir()] == ["packed.tar.xz"] and not list(scratch.iterdir())


def test_parts_that_this_machine_cannot_run(tmp_path):
    """Skipped with the reason, which is no failure."""
    (tmp_path / "empty").mkdir()
    for part, reason in (("sanitizer", "there is no compute-sanitizer on this machine"), ("ncu", "there is no ncu on this machine"),
                         ("multi-rank", "no NCCL was carried"), ("reconfigure", "PyTorch 2.14 or later is needed, and this is ")):
        p, report = run(part, tmp_path / "empty", tmp_path / "reports", PATH=f"{os.path.dirname(sys.executable)}:/usr/bin:/bin",
                        PYTHON_EXEC=sys.executable)
        if [r["ok"] for r in report["results"]] == [None]:
            assert p.returncode == 0 and reason in report["results"][0]["why"]
        else:
            assert part != "multi-rank", p.stdout  # nothing that is installed makes it possible


NCU = """==PROF== Connected to process 7
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Metric Name","Metric Unit","Metric Value"
"0","7","train_check","127.0.0.1","void gemm<64, 32>(float const*, int)","1","7","gpu__time_duration.sum","ns","3,456.5"
"0","7","train_check","127.0.0.1","void gemm<64, 32>(float const*, int)","1","7","launch__grid_size","","24"
"1","7","train_check","127.0.0.1","relu(float*)","1","7","gpu__time_duration.sum","us","1.5"
"2","7","train_check","127.0.0.1","void gemm<16, 16>(float const*, int)","1","7","gpu__time_duration.sum","ns","543.5"
"""


def test_tools_of_the_card(tmp_path):
    """How ncu and compute-sanitizer are called, by scripts in their places, and what is read from ncu's table."""
    folder, tools = tmp_path / "folder", tmp_path / "tools"
    folder.mkdir()
    tools.mkdir()
    for name in [f"gpu_kernel_{k}" for k in ("loss", "norm", "products", "step")] + ["train_check"]:
        (folder / name).write_text(f"#!/bin/sh\necho '{name}' $KERNEL_MEMORY \"$@\" >>{tmp_path}/ran\n")
        (folder / name).chmod(0o755)
    (tmp_path / "table").write_text(NCU)
    sanitizer = 'test "$1 $3 $4" = "--tool --error-exitcode 1" && echo "$2" >>"$RAN" && shift 4 && exec "$@"'
    for tool, script in (("compute-sanitizer", sanitizer), ("ncu", 'cat "$TABLE"')):
        (tools / tool).write_text(f"#!/bin/sh\n{script}\n")
        (tools / tool).chmod(0o755)
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "RAN": str(tmp_path / "tools-ran"), "TABLE": str(tmp_path / "table")}
    p, _ = run("sanitizer", folder, tmp_path / "reports", **environment)
    assert p.returncode == 0, p.stdout
    ran = sorted((tmp_path / "ran").read_text().split("\n")[:-1])
    in_device_memory = ("loss", "norm", "norm", "products", "products", "step")
    assert ran == sorted(["train_check steps 3", *(f"gpu_kernel_{k} device" for k in in_device_memory),
                          *(f"gpu_kernel_{k}" for k in ("loss", "norm", "products", "step"))])
    assert sorted((tmp_path / "tools-ran").read_text().split()) == ["memcheck"] * 9 + ["racecheck"] * 2
    _, report = run("ncu", folder, tmp_path / "reports", **environment)
    assert report["results"][0]["launches"] == 3
    assert (report["results"][0]["gemm"], report["results"][0]["relu"]) == (4.0, 1.5)


def test_a_host_for_each_rank():
    p = jobs.run([jobs.ROOT / "tests/workers/shared_gpu", "sh", "-c", "echo $NCCL_HOSTID $NCCL_NET $NCCL_SOCKET_IFNAME"],
                 env={**os.environ, "RANK": "3", "TORCHELASTIC_RUN_ID": "a"})
    assert p.stdout == "rank-3-of-a Socket lo\n"


# ------------------------------------------------------------------ NCCL for one architecture

def fat_binary(*entries):
    """(kind, architecture, payload) each."""
    body = b""
    for kind, architecture, payload in entries:
        body += struct.pack("<HHIQ", kind, 0x101, 64, len(payload)) + bytes(12) + struct.pack("<I", architecture) + bytes(32)
        body += payload
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def slim(*args):
    return subprocess.run([jobs.ROOT / "tests/gpu/slim_nccl.py", *args], capture_output=True, text=True, timeout=60)


def test_slim_nccl(tmp_path):
    """Nothing is left of other architectures and PTX; all else lies where it was, from a library as from a wheel."""
    noise, code = os.urandom(1000), [os.urandom(3000) for _ in range(5)]
    library = (noise + b"\x50\xed\x55\xba" + noise  # the magic number alone is no fat binary
               + fat_binary((2, 80, code[0]), (2, 90, code[1]), (1, 90, code[2]), (2, 100, code[3]))
               + fat_binary((2, 90, code[4])) + noise)
    (tmp_path / "libnccl.so.2").write_bytes(library)
    with zipfile.ZipFile(tmp_path / "nccl.whl", "w") as wheel:
        wheel.writestr("nvidia/nccl/include/nccl.h", "no library")
        wheel.writestr("nvidia/nccl/lib/libnccl.so.2", library)
    expected = library
    for i in (0, 2, 3):
        expected = expected.replace(code[i], bytes(3000))
    for source in ("libnccl.so.2", "nccl.whl"):
        p = slim(tmp_path / source, tmp_path / "slim")
        assert p.returncode == 0, p.stderr
        assert (tmp_path / "slim").read_bytes() == expected
    assert len(lzma.compress(expected)) < len(expected) - 8500


def test_slim_nccl_refuses(tmp_path):
    (tmp_path / "library").write_bytes(fat_binary((2, 80, b"x" * 100)))
    assert "no machine code for architecture 90" in slim(tmp_path / "library", tmp_path / "slim").stderr
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as wheel:
        wheel.writestr("a", "b")
    assert "holds no libnccl.so.2" in slim(tmp_path / "other.whl", tmp_path / "slim").stderr
    assert "has no entry" in slim_of_damaged(tmp_path).stderr


def slim_of_damaged(tmp_path):
    damaged = bytearray(fat_binary((2, 90, b"x" * 100)))
    struct.pack_into("<Q", damaged, 16 + 8, 1 << 40)  # the payload's length
    (tmp_path / "damaged").write_bytes(damaged)
    return slim(tmp_path / "damaged", tmp_path / "slim")
