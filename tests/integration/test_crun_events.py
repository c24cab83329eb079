"""--event-log and --event-log-handler=console: what happened, told to programs."""

import datetime
import json
import os
import pathlib
import signal
import subprocess
import time

import pytest

import jobs
import launches

pytestmark = pytest.mark.sanitize


def crun(*args, **more):
    return jobs.run([jobs.crun(), "--standalone", *map(str, args)], timeout=60, env={"OMP_NUM_THREADS": "1", **os.environ},
                    **more)


def events(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def kinds(path):
    return [e["event"] for e in events(path)]


def seconds(event):
    """The event's wall clock; Python's own reader knows microseconds only."""
    text = event["time"]
    assert text.endswith("Z") and len(text) == len("2026-01-01T00:00:00.123456789Z")
    return datetime.datetime.fromisoformat(text[:-4] + "+00:00").timestamp()


def test_success(tmp_path):
    before = time.time()
    p = crun(f"--event-log={tmp_path}/log", "--nproc-per-node=2", "--role=trainer", "--no-python", "sh", "-c", "sleep 0.5")
    assert p.returncode == 0 and p.stderr == ""
    log = events(tmp_path / "log")
    assert [e["event"] for e in log] == ["start", "ready", "exit", "exit", "end"]
    start, ready, first, second, end = log
    assert start["program"] == "sh"
    assert start["role"] == "trainer" and start["world_size"] == 2
    assert sorted(ready["pids"]) == sorted([first["pid"], second["pid"]])
    assert {first["rank"], second["rank"]} == {0, 1} and first["exit_code"] == 0 and first["ran_ns"] > 50e6
    assert end["result"] == "succeeded" and end["exit_code"] == 0 and end["took_ns"] > 90e6 and "reason" not in end
    assert len({e["run_id"] for e in log}) == 1 and {e["host"] for e in log} == {os.uname().nodename}
    assert before - 1 < seconds(start) <= seconds(ready) <= seconds(end) < time.time() + 1
    stamps = [e["monotonic_ns"] for e in log]
    assert stamps == sorted(stamps)
    assert abs((seconds(end) - seconds(start)) - (stamps[-1] - stamps[0]) / 1e9) < 20


def test_program_of_a_script(tmp_path):
    """The log names the script, not the interpreter."""
    (tmp_path / "train.py").write_text("")
    assert crun(f"--event-log={tmp_path}/log", f"{tmp_path}/train.py").returncode == 0
    assert events(tmp_path / "log")[0]["program"] == "train.py"
    assert crun(f"--event-log={tmp_path}/module", "-m", "this").returncode == 0
    assert events(tmp_path / "module")[0]["program"] == "this"


def test_failure_and_restart(tmp_path):
    p = crun(f"--event-log={tmp_path}/log", "--nproc-per-node=2", "--max-restarts=2", "--exit-code=worker", "--no-python",
             "sh", "-c", "test $RANK = 1 && { test $TORCHELASTIC_RESTART_COUNT = 0 && exit 5; kill -KILL $$$$; }; sleep 60")
    assert p.returncode == 128 + 9
    log = events(tmp_path / "log")
    of = lambda kind: [e for e in log if e["event"] == kind]
    assert [e["generation"] for e in of("start")] == [0, 1, 2] and [e["restarts"] for e in of("start")] == [0, 1, 2]
    assert [e["restarts_left"] for e in of("restart")] == [1, 0]
    assert [(e["cause"], e["rank"], e.get("exit_code"), e.get("signal")) for e in of("failure")] == [
        ("worker", 1, 5, None), ("worker", 1, None, "SIGKILL"), ("worker", 1, None, "SIGKILL")]
    assert of("restart")[0]["reason"].endswith(": exit code 5")
    stopped = [e for e in of("exit") if e["rank"] == 0]
    assert [(e["signal"], e["stopped_by_crun"]) for e in stopped] == [("SIGTERM", True)] * 3
    assert of("end")[0]["result"] == "failed" and of("end")[0]["exit_code"] == 137
    assert of("end")[0]["reason"].startswith("rank 1 (pid ")


def test_told_to_stop(tmp_path):
    p = launches.start(["--standalone", f"--event-log={tmp_path}/log", "--no-python", "sleep", "60"], stderr=subprocess.PIPE)
    jobs.wait_for(lambda: any(e["event"] == "ready" for e in jobs.whole_lines(tmp_path / "log")))
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=60)
    assert p.returncode == 1
    log = events(tmp_path / "log")
    assert [e["event"] for e in log] == ["start", "ready", "stop", "exit", "end"]
    assert log[2]["signal"] == "SIGINT" and log[2]["sender_pid"] == os.getpid()
    assert log[3]["signal"] == "SIGINT" and log[4]["result"] == "stopped"


def test_program_that_cannot_be_executed(tmp_path):
    (tmp_path / "w").write_text("#!/no/such/interpreter\n")
    (tmp_path / "w").chmod(0o755)
    assert crun(f"--event-log={tmp_path}/log", tmp_path / "w").returncode == 1
    log = events(tmp_path / "log")
    failure = next(e for e in log if e["event"] == "failure")
    assert (failure["cause"], failure["errno"], failure["reason"], failure["local_rank"]) == (
        "exec", 2, "No such file or directory", 0)
    assert log[-1]["event"] == "end" and log[-1]["result"] == "failed"


def test_recorded_error_is_the_reason(tmp_path):
    write = "printf '%s' '{\"message\": {\"message\": \"ValueError: boom\"}}' > $TORCHELASTIC_ERROR_FILE; exit 1"
    assert crun(f"--event-log={tmp_path}/log", "--no-python", "sh", "-c", write).returncode == 1
    assert events(tmp_path / "log")[-1]["reason"].endswith(": exit code 1: ValueError: boom")


@pytest.mark.parametrize("path, words", [
    ("{tmp}/no/such/folder/log", "cannot open the event log {tmp}/no/such/folder/log: No such file or directory"),
    ("{tmp}", "cannot open the event log {tmp}: Is a directory"),
    ("{tmp}/pipe", "cannot open the event log {tmp}/pipe: No such device or address"),
    ("/dev/full", "cannot write the event log /dev/full: No space left on device"),
])
def test_what_cannot_be_written_is_one_sentence(tmp_path, path, words):
    os.mkfifo(tmp_path / "pipe")
    p = crun(f"--event-log={path.format(tmp=tmp_path)}", "--no-python", "sh", "-c", "sleep 0.1; exit 0")
    jobs.assert_one_sentence(p, 0, words.format(tmp=tmp_path), "the job goes on without it")


def test_file_that_takes_nothing_holds_nobody_up(tmp_path):
    """A pipe that is full and that nobody reads: crun waits two seconds for it, at the end."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(tmp_path / "pipe", os.O_WRONLY | os.O_NONBLOCK)
    try:
        while True:
            os.write(writer, b"x" * 4096)
    except BlockingIOError:
        pass
    begin = time.monotonic()
    p = crun(f"--event-log={tmp_path}/pipe", "--no-python", "true")
    assert p.returncode == 0 and "takes nothing; lines are dropped" in p.stderr
    assert time.monotonic() - begin < 50
    os.close(reader), os.close(writer)


def test_two_jobs_share_a_file(tmp_path):
    (tmp_path / "log").write_text('{"event":"older"}\n')
    both = [launches.start(["--standalone", f"--rdzv-id=j{i}", f"--event-log={tmp_path}/log", "--nproc-per-node=8",
                            "--max-restarts=3", "--no-python", "sh", "-c", "exit $((TORCHELASTIC_RESTART_COUNT < 3))"],
                           stderr=subprocess.DEVNULL) for i in range(2)]
    assert [p.wait(timeout=60) for p in both] == [0, 0]
    log = events(tmp_path / "log")
    assert log[0] == {"event": "older"} and kinds(tmp_path / "log").count("start") == 8
    assert len([e for e in log if e["event"] == "exit"]) == 64


def console_events(stderr):
    return [json.loads(line) for line in stderr.splitlines() if line.startswith("{")]


def test_console_handler(tmp_path):
    p = crun("--event-log-handler=console", "--nproc-per-node=2", "--no-python", "sh", "-c", "test $RANK = 0 || exit 3; sleep 60")
    told = console_events(p.stderr)
    assert p.returncode == 1 and len(p.stderr.splitlines()) > len(told)
    states = [(e["source"], e["metadata"]["state"]) for e in told]
    assert states == [("AGENT", "RENDEZVOUS"), ("AGENT", "ASSIGN_WORKER_RANKS"), ("WORKER", "START"), ("WORKER", "START"),
                      ("WORKER", "FAILED"), ("WORKER", "FAILED"), ("AGENT", "SUCCEEDED")]
    assert all(e["name"] == f"torchelastic.worker.status.{e['metadata']['state']}" and e["timestamp"] == 0 for e in told)
    assert json.loads(told[5]["metadata"]["metadata"])["exit_code"] == [3]
    assert "system_terminated_error" in told[5]["metadata"]["raw_error"]


def test_no_handler_says_nothing(tmp_path):
    p = crun("--event-log-handler=null", "--no-python", "true")
    assert p.returncode == 0 and p.stderr == ""
    jobs.assert_one_sentence(crun("--event-log-handler=file", "true"), 1, "'file' is not registered")
