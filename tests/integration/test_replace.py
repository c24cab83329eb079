"""--restart-policy=replace, and the training state that crun holds in memory: real jobs, real kills."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile

import pytest

import jobs
import replace_kills

TOY = ["--epochs", 60]


def toy_job(*crun_args, policy="replace", options=TOY, metrics=None, n=4):
    more = ["--metrics", metrics] if metrics else []
    return jobs.train_job(n, *options, *more, program="toy",
                          crun_args=[f"--restart-policy={policy}", "--max-restarts=9", *crun_args])


@pytest.fixture(scope="module")
def calm():
    """Parameters of the undisturbed run."""
    return replace_kills.undisturbed("toy", TOY, [])[0]


@pytest.fixture
def job(tmp_path):
    """Starts a job that is ended with the test."""
    started = []

    def start(*more, policy="replace", options=TOY, restarts=9, env=None):
        j = replace_kills.Job(tmp_path, "toy", options, policy, restarts, more, env)
        started.append(j)
        return j

    yield start
    for j in started:
        j.end()


# Without an end of its own: whoever uses it kills a rank and then stops it.
ENDLESS = ["--epochs", 10**9]


def stop(j):
    j.process.send_signal(signal.SIGTERM)
    assert j.process.wait(timeout=60) == 1
    assert "has been killed" not in j.errors.read_text()


# ---- the short forms of the soak test

@pytest.mark.parametrize("program, options, policy, at_once", [
    ("toy", TOY, "replace", 1),
    ("toy", TOY, "replace", 2),
    ("toy", TOY, "all", 1),
    ("classifier", ["--epochs", 20, "--log-every", 0], "replace", 1),
])
def test_killed_ranks(program, options, policy, at_once):
    took, _ = replace_kills.rounds(program, 3, random.Random(7), policy, at_once, options, pause_ms=10)
    assert len(took) == 3


@pytest.mark.parametrize("policy", ["replace", "all"])
def test_every_rank_can_die(calm, tmp_path, policy):
    """At a given step, so that it is seen what is taken up: the step in flight is redone, no more."""
    for rank in (0, 3):
        metrics = tmp_path / f"m{rank}"
        p = jobs.run(toy_job(policy=policy, options=[*TOY, "--fault", f"rank={rank},step=40,kind=kill"], metrics=metrics))
        assert p.returncode == 0, p.stderr
        epochs, resumes = jobs.read_metrics(metrics)
        assert epochs[-1]["param_crc32c"] == calm
        assert [(r["step"], r["restart_count"]) for r in resumes] == [(39, 1)], p.stderr
        assert resumes[0]["from"] == {"replace": "peers", "all": "memory"}[policy]
        assert ("will replace what has failed" in p.stderr) == (policy == "replace"), p.stderr


def test_mnist_goes_on(small_data, tmp_path):
    """Running statistics and sums of the primary rank are its own, and come back from its memory: not only the
    parameters are the undisturbed run's."""
    wanted = ("param_crc32c", "loss", "loss_all", "test_accuracy", "step")
    options = ["--data", small_data, "--epochs", 2, "--batch-size", 32]
    p = jobs.run(jobs.train_job(2, *options, "--metrics", tmp_path / "calm"))
    assert p.returncode == 0, p.stderr
    calm = jobs.read_metrics(tmp_path / "calm")[0]
    for policy in ("replace", "all"):
        for rank in (0, 1):
            metrics = tmp_path / f"{policy}{rank}"
            p = jobs.run(jobs.train_job(2, *options, "--fault", f"rank={rank},step=13,kind=kill", "--metrics", metrics,
                                        crun_args=[f"--restart-policy={policy}", "--max-restarts=1"]))
            assert p.returncode == 0, p.stderr
            epochs, resumes = jobs.read_metrics(metrics)
            assert len(resumes) == 1 and resumes[0]["step"] == 12
            assert [[e[f] for f in wanted] for e in epochs] == [[e[f] for f in wanted] for e in calm]


# ---- who stays, who is new

def test_who_stays_and_who_is_new(job):
    j = job(options=ENDLESS)
    assert j.wait_ready()
    before = jobs.workers(j.process.pid)
    jobs.kill(before[2])
    resumed, _ = j.wait_commit()
    after = jobs.workers(j.process.pid)
    assert resumed["from"] == "peers"
    assert {rank for rank in range(4) if before[rank] != after.get(rank)} == {2}
    old, new = jobs.environment(after[0]), jobs.environment(after[2])
    assert (old["TORCHELASTIC_RESTART_COUNT"], new["TORCHELASTIC_RESTART_COUNT"]) == ("0", "1")
    assert old["MASTER_PORT"] != new["MASTER_PORT"]
    assert old["TORCHELASTIC_ERROR_FILE"].endswith("/attempt_0.0.error.json")
    assert new["TORCHELASTIC_ERROR_FILE"].endswith("/attempt_1.2.error.json")
    stop(j)


def test_logs_of_the_new_one_are_its_own(tmp_path):
    p = jobs.run(toy_job("--log-dir", tmp_path, "-r", "3", options=[*TOY, "--fault", "rank=0,step=40,kind=kill"]))
    assert p.returncode == 0, p.stderr
    first, = tmp_path.glob("*/attempt_0/0/stderr.log")
    second, = tmp_path.glob("*/attempt_1/0/stdout.log")
    assert "kill, as --fault asks" in first.read_text()
    assert "resumed from the ranks that went on" in second.read_text() and "epoch 60/60" in second.read_text()


@pytest.fixture
def sockets():
    """A folder with a short path."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield {"XDG_RUNTIME_DIR": folder}


def test_files_of_those_that_stay_are_found(job, sockets, tmp_path):
    """They are in the folder of the generation that a rank was started in: crunctl names its log, and the events of the job
    have its error."""
    j = job("--log-dir", tmp_path / "logs", "-r", "3", "--event-log-handler=console", options=ENDLESS, restarts=1, env=sockets)
    assert j.wait_ready()
    jobs.kill(jobs.workers(j.process.pid)[2])
    assert j.wait_commit()
    p = jobs.run([str(jobs.build_folder() / "launcher/crunctl"), "--json", "status"], env={**os.environ, **sockets}, timeout=60)
    logs = [w["log"] for w in json.loads(p.stdout)["nodes"][0]["workers"]]
    assert [path.split("/")[-3:] for path in logs] == [[f"attempt_{int(i == 2)}", str(i), "stdout.log"] for i in range(4)]
    assert all(map(os.path.exists, logs))

    staying = jobs.workers(j.process.pid)[0]
    pathlib.Path(jobs.environment(staying)["TORCHELASTIC_ERROR_FILE"]).write_text('{"message": "boom"}')
    jobs.kill(staying)
    assert j.process.wait(timeout=60) == 1
    lines = j.errors.read_text().splitlines()
    assert any("boom" in line for line in lines if not line.startswith("{"))
    ends = [e["metadata"] for e in map(json.loads, (line for line in lines if line.startswith("{"))) if e["source"] == "WORKER"]
    assert any(e["state"] == "FAILED" and "boom" in e["raw_error"] for e in ends if "raw_error" in e)


def test_what_the_dead_one_had_started_is_gone(tmp_path):
    """A relative in its session goes with it; those of the ranks that stay do not."""
    script = tmp_path / "worker"
    script.write_text(f"#!/bin/sh\nsleep 4321 &\necho $! > {tmp_path}/$RANK.$TORCHELASTIC_RESTART_COUNT\n"
                      f"exec {jobs.train()} toy --epochs 1000000000 >/dev/null\n")
    script.chmod(0o755)
    p = subprocess.Popen([jobs.crun(), "--standalone", "--nproc-per-node=3", "--restart-policy=replace", "--max-restarts=3",
                          str(script)], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        jobs.wait_for(lambda: replace_kills_committed(p.pid, 3), timeout=60)
        relatives = {rank: int((tmp_path / f"{rank}.0").read_text()) for rank in range(3)}
        jobs.kill(jobs.workers_named(p.pid, "train")[1])
        jobs.wait_for(lambda: (tmp_path / "1.1").exists() and (tmp_path / "1.1").read_text().strip(), timeout=60)
        jobs.wait_for(lambda: not pathlib.Path(f"/proc/{relatives[1]}").exists(), timeout=60)
        assert all(pathlib.Path(f"/proc/{relatives[rank]}").exists() for rank in (0, 2))
        new = int((tmp_path / "1.1").read_text())
        p.send_signal(signal.SIGTERM)
        assert p.wait(timeout=60) == 1
        assert not any(pathlib.Path(f"/proc/{pid}").exists() for pid in (relatives[0], relatives[2], new))
    finally:
        p.kill()
        p.wait()


def replace_kills_committed(crun_pid, n):
    ranks = jobs.workers_named(crun_pid, "train")
    return len(ranks) == n and replace_kills.committed(crun_pid, n)


# ---- where it cannot be

def test_a_worker_that_cannot_stay_turns_it_into_all(tmp_path):
    script = tmp_path / "worker"
    # Rank 1 fails when the others have spoken.
    script.write_text(f"#!/bin/sh\necho $TORCHELASTIC_RESTART_COUNT.$RANK\n"
                      f"echo > {tmp_path}/$TORCHELASTIC_RESTART_COUNT.$RANK\n"
                      f"until [ -e {tmp_path}/0.0 ] && [ -e {tmp_path}/0.2 ]; do sleep 0.01; done\n"
                      f"[ $TORCHELASTIC_RESTART_COUNT.$RANK = 0.1 ] && exit 3\n"
                      f"[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exec sleep 1000\nexit 0\n")
    script.chmod(0o755)
    p = jobs.run([jobs.crun(), "--standalone", "--nproc-per-node=3", "--restart-policy=replace", "--max-restarts=1",
                  str(script)])
    assert p.returncode == 0, p.stderr
    assert sorted(p.stdout.split()) == [f"{attempt}.{rank}" for attempt in (0, 1) for rank in range(3)]
    assert "will restart worker group" in p.stderr and "will replace" not in p.stderr
    assert "crun: rank 0 has not reported that it can stay while another rank is replaced" in p.stderr, p.stderr


@pytest.mark.parametrize("where", ["a static rendezvous", "a worker's store"])
def test_where_it_cannot_be_that_is_said_at_the_start(where):
    args = ["--nnodes=2", "--node-rank=0", "--master-addr=127.0.0.1", "--master-port=29573", "--rdzv-conf=timeout=1"]
    p = jobs.run([jobs.crun(), *(args if where == "a static rendezvous" else ["--standalone"]), "--restart-policy=replace",
                  "--max-restarts=1", "--no-python", "true"],
                 env={**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1" if where == "a worker's store" else "0"})
    if where == "a worker's store":
        jobs.assert_one_sentence(p, 0, "--restart-policy=replace", "all workers are restarted, as with all")
    else:
        first = p.stderr.splitlines()[0]
        assert "--restart-policy=replace does not work with a static rendezvous" in first, p.stderr


def test_one_that_does_not_answer_turns_it_into_all(job, calm, tmp_path):
    j = job("--replace-timeout=1", "--shutdown-timeout=60", f"--event-log={tmp_path}/events", options=ENDLESS)
    assert j.wait_ready()
    ranks = jobs.workers(j.process.pid)
    jobs.kill(ranks[3], signal.SIGSTOP)
    jobs.kill(ranks[1])
    resumed, _ = j.wait_commit()
    assert resumed["from"] == "memory" and resumed["restart_count"] == 2
    assert "4 of 4 workers were not ready within 1 s" in j.errors.read_text()
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert "rejoin" in [event["cause"] for event in events if event["event"] == "failure"]
    assert not set(ranks.values()) & set(jobs.workers(j.process.pid).values())
    stop(j)


def test_the_new_one_is_killed_as_well(job):
    """Before it is ready: the ranks that stay wait for the one after it."""
    j = job(options=ENDLESS)
    assert j.wait_ready()
    before = jobs.workers(j.process.pid)
    jobs.kill(before[1])
    for _ in range(2):
        new = jobs.wait_for(lambda: pid if (pid := jobs.workers(j.process.pid).get(1)) not in (None, before[1]) else None,
                            timeout=60)
        jobs.kill(new)
        before[1] = new
    j.wait_commit()
    after = jobs.wait_for(lambda: w if len(w := jobs.workers(j.process.pid)) == 4 else None, timeout=60)
    assert all(after[rank] == before[rank] for rank in (0, 2, 3))
    stop(j)


def test_another_dies_while_the_first_is_replaced(job):
    j = job(options=ENDLESS)
    assert j.wait_ready()
    before = jobs.workers(j.process.pid)
    jobs.kill(before[0])
    jobs.wait_for(lambda: jobs.workers(j.process.pid).get(0) not in (None, before[0]), timeout=60)
    jobs.kill(before[2])
    j.wait_commit()
    after = jobs.wait_for(lambda: w if len(w := jobs.workers(j.process.pid)) == 4 else None, timeout=60)
    assert after[1] == before[1] and after[3] == before[3]
    stop(j)


def test_the_budget_ends_it(tmp_path):
    p = jobs.run(jobs.train_job(2, "--fault", "rank=1,step=5,kind=exit", program="toy",
                                crun_args=["--restart-policy=replace", "--max-restarts=0"]))
    assert p.returncode == 1
    assert "Root Cause" in p.stderr and "will replace" not in p.stderr


@pytest.mark.parametrize("args, words", [
    (["--restart-policy=some"], ["invalid choice", "some"]),
    (["--replace-timeout=0"], ["--replace-timeout=0", "from 1"]),
])
def test_options(args, words):
    p = jobs.run([jobs.crun(), "--standalone", *args, "--no-python", "true"])
    assert p.returncode != 0
    assert all(word in p.stderr for word in words), p.stderr


def test_nothing_is_left_when_crun_is_killed_after_a_replacement(job):
    j = job(options=ENDLESS)
    assert j.wait_ready()
    jobs.kill(jobs.workers(j.process.pid)[1])
    j.wait_commit()
    pids = jobs.wait_for(lambda: w if len(w := jobs.workers(j.process.pid)) == 4 else None, timeout=60)
    guardian = jobs.children(j.process.pid)
    j.process.kill()
    j.process.wait()
    jobs.wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in [*pids.values(), *guardian]), timeout=60)


def test_a_rank_that_hangs_is_given_up():
    """Nothing has failed for crun: the others must not wait for its word, but leave and have the job restarted."""
    p = jobs.run(jobs.train_job(2, "--epochs", 3, "--fault", "rank=1,step=5,kind=hang", program="toy",
                                crun_args=["--max-restarts=3", "--shutdown-timeout=2"]),
                 env={**os.environ, "CRW_TIMEOUT_MS": "3000"})
    assert p.returncode == 0, p.stderr
    assert "did not come within 3000 ms" in p.stderr and "2/3 attempts left" in p.stderr


JOINS_LATE = """
import os, pathlib, signal, socket, struct, sys, time
rank, generation = int(os.environ["RANK"]), int(os.environ["CRUN_GENERATION"])
if generation == 1:
    time.sleep(2.5)  # as an import of PyTorch on a busy machine
notices = socket.socket(fileno=int(os.environ["CRUN_NOTICE_FD"]))

def send(kind):
    notices.send(struct.pack("<IIIii", 20, kind, generation, rank, 1))

def meet():
    send(5)
    pathlib.Path(f"{sys.argv[1]}.{generation}.{rank}").touch()
    while not all(os.path.exists(f"{sys.argv[1]}.{generation}.{i}") for i in range(2)):
        time.sleep(0.005)
    send(4)

meet()
if (rank, generation) == (1, 0):
    time.sleep(0.5)  # crun has read both
    os.kill(os.getpid(), signal.SIGKILL)
while generation == 0:
    kind, new = struct.unpack_from("<II", notices.recv(4096), 4)
    if kind == 3:
        generation = new
        meet()
os.write(1, b"%d %d\\n" % (rank, generation))
"""


def test_the_imports_of_the_new_one_do_not_count(tmp_path):
    """--replace-timeout begins when the new one joins: a slow import costs no second restart."""
    script = tmp_path / "script.py"
    script.write_text(JOINS_LATE)
    p = jobs.run([jobs.crun(), "--standalone", "--nproc-per-node=2", "--max-restarts=1", "--restart-policy=replace", "--replace-timeout=1",
                  str(script), str(tmp_path / "met")], env={**os.environ, "PYTHON_EXEC": sys.executable})
    assert p.returncode == 0, p.stderr
    assert sorted(p.stdout.splitlines()) == ["0 1", "1 1"]
