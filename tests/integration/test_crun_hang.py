"""Hangs: crun reports where each rank is, the one that the others wait for first, and nothing else is touched."""

import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time

import pytest

import fake_ras
import hangs
import jobs
import nodes as lib
import tool_kills

UP = "import os, time\nprint('up', os.getpid(), flush=True)\ntime.sleep(1000)\n"
SLEEPER = "import os, sys, time\nif os.environ['RANK'] == '1':\n    os.kill(os.getpid(), 19)\ntime.sleep(1000)\n"


def start(folder, script, *options, temporary=None):
    """With the folder for temporary files: its logs are there."""
    path = folder / "job.py"
    path.write_text(script)
    logs, env = ([], {"TMPDIR": str(temporary)}) if temporary else ([f"--log-dir={folder / 'logs'}"], {})
    with open(folder / "output", "wb") as output:
        return subprocess.Popen([jobs.crun(), "--nproc-per-node=3", *logs, "--shutdown-timeout=20",
                                 f"--event-log={folder / 'events'}", *options, "--no-python", sys.executable, str(path)],
                                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                env={**os.environ, "OMP_NUM_THREADS": "1", **env})


def event(folder, name):
    return hangs.find_event(folder / "events", name)


def output(folder):
    return (folder / "output").read_text()


def test_a_hang_is_reported_and_nothing_is_killed(tmp_path):
    p = start(tmp_path, SLEEPER, "--hang-timeout=3")
    try:
        jobs.wait_for(lambda: event(tmp_path, "hang"), 60)
        e = event(tmp_path, "hang")
        assert e["rank"] == 1 and e["groups"][0].startswith("rank 1 on ") and "stopped by a signal" in e["groups"][0]
        assert e["silence_ns"] > 3e9
        jobs.wait_for(lambda: "rank 1 on" in output(tmp_path), 10)
        assert "hang: no rank has made progress for" in output(tmp_path)
        folder = pathlib.Path(e["folder"])
        jobs.wait_for(lambda: (folder / "rank_2.txt").exists() and " state S " in (folder / "rank_2.txt").read_text(), 20)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "rank_2.txt").stat().st_mode) == 0o600
        time.sleep(1)
        assert p.poll() is None and not event(tmp_path, "exit")
    finally:
        hangs.end(p)


def test_programs_on_libcrw_name_the_collective(tmp_path):
    with open(tmp_path / "output", "wb") as out:
        p = subprocess.Popen([jobs.crun(), "--nproc-per-node=4", "--hang-timeout=3", f"--log-dir={tmp_path / 'logs'}",
                              f"--event-log={tmp_path / 'events'}", "--no-python",
                              jobs.build_folder() / "tests/workers/crw_hang", "2"],
                             stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        jobs.wait_for(lambda: event(tmp_path, "hang"), 60)
        e = event(tmp_path, "hang")
        assert e["rank"] == 2 and e["groups"][0].startswith("rank 2 on "), e
        assert e["groups"][1].startswith("ranks 0-1, 3 on ") and e["groups"][1].endswith(": in all-reduce, collective 6 of all ranks")
        assert e["groups"][2:] == ["all-reduce, collective 6 of all 4 ranks: rank 2 is missing"]
        time.sleep(1)  # the tools have ended
        assert {state_of(pid) for pid in jobs.workers(p.pid).values()} <= set("RSD")
    finally:
        hangs.end(p)


def test_a_child_that_is_found_late_is_no_progress(tmp_path):
    """Its processes are listed every 4 s before the looks at places; the child reads and writes before `began` is made alone."""
    script = ("import os, subprocess, sys, time\ntime.sleep(1)\n"
              "p = subprocess.Popen(['sh', '-c', 'echo; read x'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
              "p.stdout.read(1)\nos.mkdir(sys.argv[1] + os.environ['RANK'])\ntime.sleep(1000)\n")
    path = tmp_path / "job.py"
    path.write_text(script)
    with open(tmp_path / "output", "wb") as out:
        p = subprocess.Popen([jobs.crun(), "--nproc-per-node=2", "--hang-timeout=6", f"--log-dir={tmp_path / 'logs'}",
                              f"--event-log={tmp_path / 'events'}", "--no-python", sys.executable, str(path), str(tmp_path / "began")],
                             stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        jobs.wait_for(lambda: (tmp_path / "began0").exists() and (tmp_path / "began1").exists(), 60)
        began = time.monotonic_ns()
        jobs.wait_for(lambda: event(tmp_path, "hang"), 60)
        e = event(tmp_path, "hang")
        assert e["monotonic_ns"] - e["silence_ns"] - began < 2.5e9  # the child is found 3.4 s after it began
    finally:
        hangs.end(p)


def test_small_files_that_are_read_again_are_no_progress(tmp_path):
    """As the client of a store at a wrong port, which reads /etc/hosts for each attempt to connect."""
    script = ("import os, sys, time\nprint('up', flush=True)\n"
              "while True:\n    open('/etc/hosts').read(49)\n    time.sleep(0.5)\n")
    p = start(tmp_path, script, "--hang-timeout=5")
    try:
        jobs.wait_for(lambda: event(tmp_path, "hang"), 30)
        assert 5e9 <= event(tmp_path, "hang")["silence_ns"] < 10e9, output(tmp_path)
        time.sleep(3)
        assert "makes progress again" not in output(tmp_path)
    finally:
        hangs.end(p)


def report_lines(text, headline):
    """The lines of one report: the headline, and the indented lines behind it."""
    lines = [re.sub(r"^crun: (\d{4}-\S+ \S+ )?", "", line) for line in text.splitlines()]
    first = next(i for i, line in enumerate(lines) if line.startswith(headline))
    return [lines[first], *itertools.takewhile(lambda line: line.startswith("  "), lines[first + 1:])]


@pytest.mark.parametrize("timeout, name, headline", [(2, "hang", "hang: no rank has made progress"), (0, "stacks", "stacks: workers do not end")])
def test_reports_on_many_places_are_short(tmp_path, timeout, name, headline):
    """64 ranks at 64 places, without tools. One is Python: a line names py-spy, once. Another one computes, which hangs for no report."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python3").symlink_to(sys.executable)
    for i in range(64):
        os.mkfifo(tmp_path / f"fifo.{i}")
    worker = (f"[ $RANK = 0 ] && exec {folder}/python3 -c 'import signal, time; signal.signal(15, signal.SIG_IGN); print(\"up\", flush=True); time.sleep(1e6)'\n"
              f"trap '' TERM\n[ $RANK.{name} = 1.stacks ] && echo up && while :; do :; done\nexec 3<>{tmp_path}/fifo.$RANK\necho up\nread x <&3")
    with open(tmp_path / "output", "wb") as out:
        p = subprocess.Popen([jobs.crun(), "--nproc-per-node=64", f"--hang-timeout={timeout}", "--shutdown-timeout=4", f"--event-log={tmp_path / 'events'}",
                              "--no-python", "/bin/sh", "-c", worker.replace("$", "$$")],
                             stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, "PATH": str(folder), "CRUN_PYSPY": ""})
    try:
        jobs.wait_for(lambda: output(tmp_path).count("up") == 64, 60)
        if name == "hang":
            jobs.wait_for(lambda: event(tmp_path, name), 60)
        p.terminate()
        assert p.wait(60) != 0
        lines = report_lines(output(tmp_path), headline)
        assert len(event(tmp_path, name)["groups"]) == len(lines) - 2 and 8 <= len(lines) <= 12, lines
        assert "more ranks at other places" in lines[-2] and "`pip install py-spy`" in lines[-1], lines
        assert output(tmp_path).count("`pip install py-spy`") == 1
        places = re.findall(r"waits for input of \S+/fifo\.(\d+)", "\n".join(lines))
        assert len(places) == len(set(places)) >= 3, lines
        assert (name == "stacks") == bool(re.search(r"\n  rank 1 on \S+ \(pid \d+\): computes \(no tool for its stack\)\n", "\n".join(lines))), lines
    finally:
        hangs.end(p)


def test_hang_action_restart_uses_the_budget(tmp_path):
    script = "import os, time\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n    time.sleep(1000)\n"
    p = start(tmp_path, script, "--hang-timeout=2", "--hang-action=restart", "--max-restarts=1")
    try:
        assert p.wait(90) == 0, output(tmp_path)
        assert event(tmp_path, "restart") and "--hang-action=restart: killing rank" in output(tmp_path)
    finally:
        hangs.end(p)


def test_no_worker_of_the_next_generation_is_killed_for_a_hang(tmp_path, monkeypatch):
    """A worker ends by itself between the report and the end of the tools, behind which --hang-action is done."""
    tool = tmp_path / "py-spy"
    tool.write_text("#!/bin/sh\nexec sleep 30\n")
    tool.chmod(0o755)
    monkeypatch.setenv("CRUN_PYSPY", str(tool))
    script = ("import os, time\nprint('pid', os.environ['RANK'], os.getpid(), flush=True)\n"
              "while os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n    time.sleep(1000)\n"
              "for _ in range(20):\n    time.sleep(0.5)\n    open(os.devnull, 'w').write('x')\n")
    p = start(tmp_path, script, "--hang-timeout=2", "--hang-action=restart", "--max-restarts=3")
    try:
        jobs.wait_for(lambda: event(tmp_path, "hang"), 60)
        os.kill(int(re.search(r"pid 1 (\d+)", output(tmp_path)).group(1)), signal.SIGKILL)
        assert p.wait(120) == 0, output(tmp_path)
        assert "killing rank" not in output(tmp_path)
        assert len([e for e in hangs.read_events(tmp_path / "events") if e["event"] == "restart"]) == 1
    finally:
        hangs.end(p)


# Attaches to each thread and does not end: crun has to kill it.
TRACER = f'''#!{sys.executable}
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
libc.ptrace.argtypes = [ctypes.c_long] * 4
pid = sys.argv[sys.argv.index("--pid") + 1]
for thread in os.listdir(f"/proc/{{pid}}/task"):
    libc.ptrace(16, int(thread), 0, 0)
open(f"{{sys.argv[0]}}.{{pid}}", "w").close()
time.sleep(1e6)
'''


def state_of(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_nothing_stays_stopped_behind_a_tool_that_is_killed(tmp_path, monkeypatch):
    """Ranks that only wait, with threads and children."""
    tool = tmp_path / "py-spy"
    tool.write_text(TRACER)
    tool.chmod(0o755)
    monkeypatch.setenv("CRUN_PYSPY", str(tool))
    script = ("import os, threading, time\n"
              "for _ in range(8):\n    threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()\n"
              "print('pid', os.getpid(), flush=True)\nos.environ['RANK'] == '0' and os.fork()\ntime.sleep(1e6)\n")
    p = start(tmp_path, script, "--hang-timeout=2")
    try:
        jobs.wait_for(lambda: event(tmp_path, "hang"), 60)
        examined = [int(path.suffix[1:]) for path in tmp_path.glob("py-spy.*")]
        assert set(map(int, re.findall(r"pid (\d+)", output(tmp_path)))) <= set(examined) and len(examined) >= 4
        states = {pid: state_of(pid) for pid in examined}
        assert set(states.values()) <= set("SRD"), f"{states}\n{output(tmp_path)}"  # none is stopped, traced or gone
    finally:
        hangs.end(p)


@pytest.mark.parametrize("kind", tool_kills.KINDS)
def test_a_killed_tool_leaves_no_process_stopped(kind):
    if not tool_kills.find("eu-stack"):
        pytest.skip("needs eu-stack")
    assert tool_kills.kill_tool("eu-stack", kind, kills=2, seed=random.randrange(1 << 31)) == (0, "2 kills, 0 stopped")


@pytest.fixture
def runtime(monkeypatch):
    """Sockets have short paths, so not below tmp_path."""
    with tempfile.TemporaryDirectory(prefix="crun-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield folder


@pytest.mark.usefixtures("runtime")
def test_a_new_generation_has_no_mark_of_a_hang(tmp_path):
    p = start(tmp_path, "import time\nprint('up', flush=True)\ntime.sleep(1000)\n", "--hang-timeout=2", "--max-restarts=1",
              "--rdzv-id=job")

    def workers():
        answer = subprocess.run([pathlib.Path(jobs.crun()).parent / "crunctl", "--json", "status"], capture_output=True, text=True,
                                timeout=60, check=True).stdout
        return json.loads(answer)["nodes"][0]["workers"]

    try:
        jobs.wait_for(lambda: output(tmp_path).count("up") == 3, 60)
        jobs.wait_for(lambda: any(w["hang"] for w in workers()), 60)
        os.kill(workers()[1]["pid"], signal.SIGKILL)
        jobs.wait_for(lambda: output(tmp_path).count("up") == 6, 60)
        assert not any(w["hang"] for w in workers()), workers()
        jobs.wait_for(lambda: any(w["hang"] for w in workers()), 60)
    finally:
        hangs.end(p)


def test_hang_action_stop_ends_the_job(tmp_path):
    p = start(tmp_path, SLEEPER, "--hang-timeout=2", "--hang-action=stop", "--max-restarts=3")
    try:
        assert p.wait(90) != 0
        assert event(tmp_path, "hang") and event(tmp_path, "end")["result"] == "stopped"
        assert "--hang-action=stop" in output(tmp_path)
    finally:
        hangs.end(p)


def test_sigquit_takes_stacks_then_stops(tmp_path):
    p = start(tmp_path, "import time\nprint('up', flush=True)\ntime.sleep(1000)\n", "--hang-timeout=0")
    try:
        jobs.wait_for(lambda: output(tmp_path).count("up") == 3, 60)
        p.send_signal(signal.SIGQUIT)
        assert p.wait(60) != 0
        e = event(tmp_path, "stacks")
        assert len(e["groups"]) == 1 and e["groups"][0].startswith("ranks 0-2 on ")
        names = [line["event"] for line in hangs.read_events(tmp_path / "events")]
        assert names.index("stacks") < names.index("stop")
    finally:
        hangs.end(p)


def pids_of(text):
    return [int(pid) for pid in re.findall(r"up (\d+)", text)]


def behind(version, own, *all_reduces, missing=()):
    """NCCL's answer about a communicator; of each rank the number of all-reduces. own: the process of rank 0."""
    ranks = [fake_ras.rank(i, 70 + i if i else own, (0, 0, 0, 0, n)) for i, n in enumerate(all_reduces)]
    return fake_ras.document(version, [fake_ras.communicator("0xabc", ranks, missing)])


def test_the_flight_recorder_and_nccl_are_asked(tmp_path, monkeypatch):
    """Each rank's pipe gets the order to write; a file in the place of one is left alone. RAS's answers are kept, and the missing
    rank is named, also where the JSON lacks a comma."""
    ras = fake_ras.Ras()
    prefix = tmp_path / "recorder"
    pipes = {}
    for rank in (0, 2):
        os.mkfifo(f"{prefix}{rank}.pipe")
        pipes[rank] = os.open(f"{prefix}{rank}.pipe", os.O_RDONLY | os.O_NONBLOCK)
    pathlib.Path(f"{prefix}1.pipe").write_text("of the user")
    monkeypatch.setenv("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", str(prefix))
    monkeypatch.setenv("NCCL_RAS_ADDR", ras.address)
    p = start(tmp_path, UP, "--hang-timeout=2")
    line = "NCCL: rank 2 (10.0.0.1, pid 72) of communicator 0xabc of 3 ranks does not answer NCCL's RAS"
    try:
        jobs.wait_for(lambda: pids_of(output(tmp_path)), 60)
        ras.answer = behind("2.28.9", pids_of(output(tmp_path))[0], 42, 42, missing=[fake_ras.missing(2, 72)])
        jobs.wait_for(lambda: event(tmp_path, "hang"), 60)
        assert event(tmp_path, "hang")["groups"][-1] == line and f"  {line}\n" in output(tmp_path)
        answers = [pathlib.Path(event(tmp_path, "hang")["folder"]) / f"nccl_ras.{kind}" for kind in ("json", "txt")]
        assert json.loads(answers[0].read_text())["communicators"][0]["missing_ranks"][0]["pid"] == 72
        jobs.wait_for(lambda: answers[1].exists() and answers[1].read_text() == fake_ras.TEXT, 60)
        assert ras.requests == ["set format json", "verbose status", "verbose status"]
        assert [stat.S_IMODE(answer.stat().st_mode) for answer in answers] == [0o600, 0o600]
        assert [os.read(pipe, 100) for pipe in pipes.values()] == [b"1\n", b"1\n"]
        assert pathlib.Path(f"{prefix}1.pipe").read_text() == "of the user"
    finally:
        hangs.end(p)
        for pipe in pipes.values():
            os.close(pipe)
        ras.close()


@pytest.mark.usefixtures("runtime")
def test_any_answer_of_ras_leaves_the_report(tmp_path, monkeypatch):
    """As NCCL 2.27 and 2.29, of another job, cut, of endless depth or length, and byte after byte: the stacks come in time, and crun stays small."""
    other = behind("2.29.3", 1, 42, 41, 42)
    ras = fake_ras.Ras()
    monkeypatch.setenv("NCCL_RAS_ADDR", ras.address)
    p = start(tmp_path, UP, "--hang-timeout=0")
    try:
        jobs.wait_for(lambda: len(pids_of(output(tmp_path))) == 3, 60)
        whole = behind("2.29.3", pids_of(output(tmp_path))[0], 42, 41, 42)
        answers = {"old": None, "whole": whole, "other": other, "cut": whole[:-20], "deep": "deep", "huge": "huge", "slow": "slow"}
        for kind, ras.answer in answers.items():
            began = time.monotonic()
            answer = subprocess.run([pathlib.Path(jobs.crun()).parent / "crunctl", "stacks"], capture_output=True, text=True, timeout=60, check=True)
            assert time.monotonic() - began < 20
            line = "NCCL: rank 1 (10.0.0.1, pid 71) of communicator 0xabc of 3 ranks has launched 41 AllReduce, others 42"
            assert re.findall("NCCL.*", answer.stdout) == [line] * (kind == "whole"), (kind, answer.stdout)
            assert jobs.ranks_in(answer.stdout) == [0, 1, 2], answer.stdout
            folder = pathlib.Path(re.search(r"stacks: (\S+)", answer.stdout)[1])
            assert (folder / "nccl_ras.json").exists() == (kind in ("whole", "other")), kind
        peak = re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{p.pid}/status").read_text())
        assert int(peak[1]) < 64 << 10, peak[0]
    finally:
        hangs.end(p)
        ras.close()


def test_workers_that_do_not_end_are_looked_at_before_the_kill(tmp_path):
    script = ("import os, signal, sys, time\nif os.environ['RANK'] == '0':\n    time.sleep(1)\n    sys.exit(3)\n"
              "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(1000)\n")
    p = start(tmp_path, script, "--shutdown-timeout=8")
    try:
        assert p.wait(90) == 1
        names = [line["event"] for line in hangs.read_events(tmp_path / "events")]
        assert "stacks" in names and names.index("stacks") < len(names) - 1 - names[::-1].index("exit")
    finally:
        hangs.end(p)


def test_a_job_that_is_slow_is_not_reported(tmp_path):
    """One rank writes now and then, the others wait; then one computes, in functions that change."""
    script = ("import os, time\nend = time.monotonic() + 12\n"
              "def a():\n    sum(range(100000))\ndef b():\n    sum(range(200000))\n"
              "if os.environ['RANK'] == '0':\n"
              "    while time.monotonic() < end:\n        time.sleep(1.5)\n        open(os.devnull, 'w').write('x')\n"
              "else:\n    time.sleep(14)\n")
    p = start(tmp_path, script, "--hang-timeout=3")
    try:
        assert p.wait(90) == 0
        assert not event(tmp_path, "hang"), output(tmp_path)
    finally:
        hangs.end(p)


def test_a_stack_that_comes_too_late_is_no_sign_of_a_hang(tmp_path, monkeypatch):
    """A rank computes for longer than the time-out, and the tool never shows where."""
    tool = tmp_path / "py-spy"
    tool.write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\nexec sleep 30\n")
    tool.chmod(0o755)
    monkeypatch.setenv("CRUN_PYSPY", str(tool))
    script = ("import os, time\n"
              "for _ in range(1 if os.environ['RANK'] == '0' else 0):\n"
              "    end = time.monotonic() + 22\n"
              "    while time.monotonic() < end:\n        pass\n"
              "    open(os.devnull, 'w').write('x')\n")
    p = start(tmp_path, script, "--hang-timeout=6")
    try:
        assert p.wait(90) == 0
        assert (tmp_path / "asked").exists()
        assert not event(tmp_path, "hang"), output(tmp_path)
    finally:
        hangs.end(p)


@pytest.mark.parametrize("kind", ("order", "python", "store", "disk"))
def test_the_rank_that_others_wait_for_is_named_first(tmp_path, kind):
    if kind == "disk" and not (os.geteuid() == 0 and os.access("/dev/fuse", os.R_OK | os.W_OK)):
        pytest.skip("mounting a file system of its own takes root and /dev/fuse")
    report = hangs.run_hang(kind, tmp_path)
    assert report.culprit, report.groups
    assert kind != "disk" or "blocked in the kernel (state D)" in report.groups[0], report.groups


def test_the_debug_server_of_pytorch_on_the_same_hang(tmp_path):
    """What crun is compared with: the page has the stacks of all ranks, and one of them differs."""
    page, is_seen = hangs.run_debug_server("skip", tmp_path, 2)
    assert is_seen and len(page.stacks) == hangs.RANKS, page.stacks


@pytest.mark.usefixtures("runtime")
def test_crunctl_takes_stacks(tmp_path):
    p = start(tmp_path, "import time\nprint('up', flush=True)\ntime.sleep(1000)\n", "--hang-timeout=0")
    try:
        jobs.wait_for(lambda: output(tmp_path).count("up") == 3, 60)
        crunctl = pathlib.Path(jobs.crun()).parent / "crunctl"
        answer = subprocess.run([crunctl, "stacks"], capture_output=True, text=True, timeout=60, check=False)
        assert answer.returncode == 0, answer.stderr
        assert ", stacks: " in answer.stdout and jobs.ranks_in(answer.stdout) == [0, 1, 2], answer.stdout
        folder = pathlib.Path(re.search(r"stacks: (\S+)", answer.stdout)[1])
        assert sorted(path.name for path in folder.iterdir()) == [f"rank_{rank}.txt" for rank in range(3)]
        assert subprocess.run([crunctl, "stacks", "another"], capture_output=True, timeout=60, check=False).returncode == 3
        assert p.poll() is None
    finally:
        hangs.end(p)


@pytest.mark.usefixtures("runtime")
def test_the_folder_of_stacks_does_not_stay_without_them(tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    script = f"import os, time\nprint('up', flush=True)\nwhile not os.path.exists('{tmp_path}/end'): time.sleep(0.02)\n"
    p = start(tmp_path, script, "--hang-timeout=0", temporary=temporary)
    try:
        jobs.wait_for(lambda: output(tmp_path).count("up") == 3, 60)
        answer = subprocess.run([pathlib.Path(jobs.crun()).parent / "crunctl", "stacks"], capture_output=True, text=True, timeout=60, check=True)
        folder = pathlib.Path(re.search(r"stacks: (\S+)", answer.stdout)[1])
        assert folder.parts[-2:] == ("attempt_0", "stacks_1") and folder.parents[2] == temporary
        shutil.rmtree(folder)
        (tmp_path / "end").touch()
        assert p.wait(60) == 0, output(tmp_path)
        assert os.listdir(temporary) == []
    finally:
        hangs.end(p)


def test_nodes_agree_before_a_hang_is_reported(tmp_path):
    """Node 0 works in turns while node 1 waits: no report; when node 0 waits, too, all nodes report all ranks."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    script = ("import os, sys, time\n"
              "if os.environ['GROUP_RANK'] == '0':\n"
              "    end = time.monotonic() + 8\n"
              "    while time.monotonic() < end:\n        time.sleep(0.5)\n        open(os.devnull, 'w').write('x')\n"
              "    open(sys.argv[1], 'w').write('waits')\n"
              "time.sleep(1000)\n")
    path = tmp_path / "job.py"
    path.write_text(script)
    nodes = []
    try:
        for i in range(2):
            with open(tmp_path / f"output{i}", "wb") as out:
                nodes.append(subprocess.Popen(
                    [jobs.crun(), "--nnodes=2", "--nproc-per-node=1", f"--node-rank={i}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
                     "--hang-timeout=3", f"--log-dir={tmp_path / f'logs{i}'}", f"--event-log={tmp_path / f'events{i}'}",
                     "--no-python", sys.executable, str(path), str(tmp_path / "waits")],
                    stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, "OMP_NUM_THREADS": "1"}))
        jobs.wait_for(lambda: (tmp_path / "waits").exists(), 60)
        assert not any(hangs.find_event(tmp_path / f"events{i}", "hang") for i in range(2))
        jobs.wait_for(lambda: all(hangs.find_event(tmp_path / f"events{i}", "hang") for i in range(2)), 60)
    finally:
        for p in nodes:
            hangs.end(p)


def test_one_report_over_all_nodes(tmp_path):
    """Rank 2 is stopped: both nodes name it first, and the ranks of both. NCCL's RAS is asked where node 0 is."""
    ras = fake_ras.Ras()
    script = ("import os, signal, time\nprint('up', os.getpid(), flush=True)\n"
              "if os.environ['RANK'] == '2':\n    os.kill(os.getpid(), signal.SIGSTOP)\n"
              "time.sleep(1000)\n")
    path = tmp_path / "job.py"
    path.write_text(script)
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        for i in range(2):
            nodes.crun("--nnodes=2", "--nproc-per-node=2", f"--node-rank={i}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job",
                       "--hang-timeout=3", f"--log-dir={tmp_path / f'logs{i}'}",
                       f"--event-log={tmp_path / f'events{i}'}", "--no-python", sys.executable, str(path),
                       env={"NCCL_RAS_ADDR": ras.address if i == 0 else "localhost:1"})
        jobs.wait_for(lambda: pids_of(list(nodes)[0].text()), 60)
        ras.answer = behind("2.29.3", pids_of(list(nodes)[0].text())[0], 9, 9, missing=[fake_ras.missing(2, 72)])
        jobs.wait_for(lambda: all(hangs.find_event(tmp_path / f"events{i}", "hang") for i in range(2)), 60)
        found = [hangs.find_event(tmp_path / f"events{i}", "hang") for i in range(2)]
        assert [e["rank"] for e in found] == [2, 2], found
        assert found[0]["groups"] == found[1]["groups"]
        text = "\n".join(found[0]["groups"])
        assert re.search(r"rank 2 on .* stands out: stopped by a signal", text), text
        assert "ranks 0-1, 3" in text, text
        assert text.endswith("NCCL: rank 2 (10.0.0.1, pid 72) of communicator 0xabc of 3 ranks does not answer NCCL's RAS"), text
        assert all("stands out: stopped by a signal" in node.text() for node in nodes), nodes.texts()
    ras.close()


def test_crunctl_takes_the_stacks_of_all_nodes(tmp_path, runtime):
    """On the node that serves the rendezvous, and on another one."""
    port = lib.free_port()
    folders = [pathlib.Path(runtime) / str(i) for i in range(2)]
    with lib.Nodes(tmp_path) as nodes:
        for i, folder in enumerate(folders):
            folder.mkdir()
            nodes.crun("--nnodes=2", "--nproc-per-node=2", f"--node-rank={i}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job",
                       f"--rdzv-conf=is_host={1 - i}", "--hang-timeout=0", f"--log-dir={tmp_path / f'logs{i}'}", "--no-python",
                       sys.executable, "-c", "import time; print('up', flush=True); time.sleep(1000)", env={"XDG_RUNTIME_DIR": str(folder)})
        jobs.wait_for(lambda: all(node.text().count("up") == 2 for node in nodes), 60)
        crunctl = pathlib.Path(jobs.crun()).parent / "crunctl"
        for folder in folders:
            answer = subprocess.run([crunctl, "stacks"], capture_output=True, text=True, timeout=60, check=False,
                                    env={**os.environ, "XDG_RUNTIME_DIR": str(folder)})
            assert answer.returncode == 0 and jobs.ranks_in(answer.stdout) == [0, 1, 2, 3], (answer.stdout, answer.stderr)
