"""--on-line: what happens when a worker prints a line that a rule is about."""

import json
import os
import time

import jobs
import nodes as lib


def crun(*args, script, **environment):
    return jobs.run([jobs.crun(), "--standalone", "-t", "3", *args, "--no-python", "sh", "-c", script], timeout=120,
                    env={**os.environ, "OMP_NUM_THREADS": "1", **environment})


def test_stop(tmp_path):
    """No restart, though there are restarts left; the line is the cause."""
    p = crun("--nproc-per-node=2", "--max-restarts=3", "--restart-pause=0", "--on-line=loss=(nan|inf)=stop",
             script=f"echo run >> {tmp_path}/runs$RANK; test $RANK = 1 && echo step 7 loss=nan; sleep 100")
    assert p.returncode == 1
    assert "rank 1: it printed a line that --on-line has a rule for (loss=(nan|inf)=stop): step 7 loss=nan" in p.stderr
    assert (tmp_path / "runs0").read_text() == "run\n"
    assert p.stderr.count("step 7 loss=nan") >= 2, p.stderr  # in the report as well
    assert "that signal came from crun, for --on-line" in p.stderr and "did not come from crun" not in p.stderr
    assert "rules out a restart" in p.stderr and "restarts are used" not in p.stderr


def test_stop_in_the_first_moment(tmp_path):
    """The line is faster than the guardian's report that the worker has started."""
    p = crun("--nproc-per-node=2", "--max-restarts=3", "--on-line=nan=stop", script=f"echo >> {tmp_path}/runs$RANK; test $RANK = 1 && echo nan; sleep 300",
             **jobs.preload("late_guardian"))
    assert p.returncode == 1 and "came from crun, for --on-line" in p.stderr, p.stderr
    assert (tmp_path / "runs1").read_text() == "\n"


def test_stop_in_the_last_moment(tmp_path):
    """The worker ends by itself behind the line: its end may be known before the line."""
    runs = tmp_path / "runs"
    for streams in ((), (f"--log-dir={tmp_path / 'logs'}",)):
        for i in range(15):
            p = crun("--max-restarts=3", "--restart-pause=0", "--on-line=nan=stop", *streams, script=f"echo run >> {runs}; echo nan; exit 3")
            assert p.returncode == 1
            assert runs.read_text() == "run\n", f"at try {i}: {p.stderr}"
            runs.unlink()


def test_the_end_does_not_wait_without_a_rule_stop(tmp_path):
    """A worker that fails without such a line is restarted, and soon."""
    p = crun("--max-restarts=2", "--restart-pause=0", "--on-line=nan=stop", script=f"echo run >> {tmp_path}/runs; exit 3")
    assert p.returncode == 1
    assert (tmp_path / "runs").read_text() == "run\n" * 3


def test_without_log_files():
    p = crun("--log-dir=/dev/null", "--on-line=nan=stop", "--max-restarts=3", script="echo nan; exec sleep 100")
    assert p.returncode == 1 and "it printed a line that --on-line has a rule for" in p.stderr, p.stderr


def test_stacks(tmp_path):
    p = crun("--on-line=^look=stacks", f"--event-log={tmp_path}/events",
             script=f"echo look; sleep 3; echo look; until grep -q '\"event\":\"stacks\"' {tmp_path}/events; do sleep 0.2; done")
    assert p.returncode == 0, p.stderr
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert [e["action"] for e in events if e["event"] == "mark"] == ["stacks", "stacks"]
    assert len([e for e in events if e["event"] == "stacks"]) == 1, p.stderr  # at most one a minute
    assert "stacks: a line that --on-line has a rule for" in p.stderr


def test_stacks_at_the_end():
    """The thread that takes them is not done when the event loop has ended."""
    for _ in range(8):
        p = crun("--on-line=look=stacks", script="echo look")
        assert p.returncode == 0, p.stderr


def test_restart(tmp_path):
    p = crun("--max-restarts=1", "--restart-pause=0", "--on-line=CUDA error=restart",
             script=f"echo run >> {tmp_path}/runs; test $TORCHELASTIC_RESTART_COUNT = 1 && exit 0; echo CUDA error: 700 >&2; sleep 100")
    assert p.returncode == 0, p.stderr
    assert (tmp_path / "runs").read_text() == "run\nrun\n"


def test_mark(tmp_path):
    p = crun("--on-line=^epoch=mark", f"--event-log={tmp_path}/events", script="echo epoch 1; echo other; exit 0")
    assert p.returncode == 0, p.stderr
    marks = [e for e in map(json.loads, (tmp_path / "events").read_text().splitlines()) if e["event"] == "mark"]
    assert [(m["rank"], m["action"], m["rule"], m["line"]) for m in marks] == [(0, "mark", "^epoch=mark", "epoch 1")]


def test_marks_in_the_history(tmp_path):
    p = crun("--on-line=^epoch=mark", "--rdzv-id=marked", script="echo epoch 1", XDG_STATE_HOME=str(tmp_path))
    assert p.returncode == 0, p.stderr
    history = [json.loads(line) for line in (tmp_path / "crun/history.jsonl").read_text().splitlines()]
    assert [e["line"] for e in history if e["event"] == "mark"] == ["epoch 1"]
    shown = jobs.run([str(jobs.build_folder() / "launcher/crunctl"), "history"], env={**os.environ, "XDG_STATE_HOME": str(tmp_path)})
    assert "lines marked: 1, the last one by rank 0: epoch 1" in shown.stdout


def test_a_flood_of_marks(tmp_path):
    begin = time.monotonic()
    p = crun("--on-line=y=mark", f"--event-log={tmp_path}/events", script="yes | head -n 300000")
    took = time.monotonic() - begin
    assert p.returncode == 0
    marks = (tmp_path / "events").read_text().count('"event":"mark"')
    assert 1 <= marks <= 2 + took


def test_rules_that_are_wrong():
    for rule, why in (("a=kill", "a rule is REGEX=stop"), ("(=stop", "a ( has no )")):
        p = jobs.run([jobs.crun(), "--standalone", "-t", "3", f"--on-line={rule}", "--no-python", "true"])
        jobs.assert_one_sentence(p, 1, why)
    p = jobs.run([jobs.crun(), "--standalone", "--on-line=a=stop", "--no-python", "true"])
    jobs.assert_one_sentence(p, 1, "add -t 3")


def test_two_nodes(tmp_path):
    """The result of all nodes has the line, and there is no restart."""
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        for node in range(2):
            nodes.crun("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job",
                       "--max-restarts=3", "--shutdown-timeout=5", "-t", "3", "--on-line=loss=nan=stop",
                       "--no-python", "sh", "-c", "test $RANK = 1 && echo loss=nan; exec sleep 100")
        assert nodes.codes() == [1, 1], nodes.texts()
        assert all("it printed a line that --on-line has a rule for" in node.text() for node in nodes), nodes.texts()


# ---- --no-requeue-code ----

def code(*args, **more):
    return jobs.run([jobs.crun(), "--standalone", "--no-requeue-code=77", *args], env={**os.environ, "OMP_NUM_THREADS": "1"}, **more).returncode


def test_no_requeue(tmp_path):
    wrong, fine, missing = tmp_path / "wrong.py", tmp_path / "fine.py", tmp_path / "missing.py"
    wrong.write_text("def f(:\n")
    fine.write_text("raise RuntimeError('a GPU')\n")
    missing.write_text("import nothing_of_that_name\n")
    logs = [f"--log-dir={tmp_path / 'logs'}", "-r", "2"]
    assert code(*logs, wrong) == 77
    assert code(*logs, missing) == 77
    assert code(*logs, fine) == 1
    assert code("-t", "3", logs[0], missing) == 77  # shown and in a file
    assert code("-t", "3", logs[0], fine) == 1
    assert code("--no-python", tmp_path / "nothing") == 77
    assert code("--no-python", "sh", "-c", "exit 3") == 1
    assert code("--no-python", "true") == 0
    assert code("-t", "3", "--on-line=nan=stop", "--no-python", "sh", "-c", "echo nan; sleep 100") == 77
    assert code("-t", "3", "--on-line=nan=restart", "--no-python", "sh", "-c", "echo nan; sleep 100") == 1
