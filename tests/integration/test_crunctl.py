"""crunctl: what it shows of jobs that run, and of those that have ended."""

import fcntl
import json
import os
import pathlib
import pty
import pwd
import re
import signal
import socket
import stat
import struct
import subprocess
import sys
import termios
import time

import pytest

import jobs
import launches
import nodes
from crund import Crund
from session_agent import OPENING, Agent

pytestmark = pytest.mark.sanitize

CRUNCTL = str(jobs.build_folder() / "launcher" / "crunctl")
JOB = ("--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=job", "--no-python")


@pytest.fixture
def folders(tmp_path):
    """Sockets have short paths, so not below tmp_path."""
    runtime = f"/tmp/crunctl-{os.getpid()}-{time.monotonic_ns() % 1000000}"
    os.mkdir(runtime, 0o700)
    yield {"XDG_RUNTIME_DIR": runtime, "XDG_STATE_HOME": str(tmp_path / "state")}
    subprocess.run(["rm", "-rf", runtime], check=True)


def ask(folders, *args, **more):
    return jobs.run([CRUNCTL, *map(str, args)], timeout=60, env={**os.environ, **folders}, **more)


def start(folders, *args):
    return launches.start(list(args), stderr=subprocess.PIPE, text=True, environment=folders)


def status(folders, *args):
    """The jobs that answer."""
    p = ask(folders, "--json", "status", *args)
    assert p.returncode == 0, p.stderr
    return [json.loads(line) for line in p.stdout.splitlines()]


def workers(job):
    return job["nodes"][0]["workers"]


def wait_for_state(folders, state):
    def seen():
        found = status(folders)
        return found and found[0]["state"] == state and found[0]
    return jobs.wait_for(seen, 30, 0.05)


def test_steps_of_workers(folders):
    """Those of these processes: what the ones before have left in the memory files does not count."""
    script = ('import os, struct, sys, time; again = os.environ["TORCHELASTIC_RESTART_COUNT"] == "1"; first = os.environ["RANK"] == "0"; '
              'again and first or os.pwrite(int(os.environ["CRUN_STATE_FD"]), b"CRUNBEAT" + struct.pack("<QQ", 40 + again, time.monotonic_ns()), 0); '
              'time.sleep(60 if again else 4); sys.exit(1)')
    start(folders, "--nproc-per-node=2", "--max-restarts=1", "--restart-pause=0", *JOB, sys.executable, "-c", script)

    def steps():
        return [w["last_step"] for job in status(folders) for w in workers(job)]
    jobs.wait_for(lambda: steps() == [40, 40], 30, 0.05)
    jobs.wait_for(lambda: steps() == [None, 41], 30, 0.05)


def test_step_that_is_faster_than_the_guardian(folders):
    """On a busy machine the guardian sees late that the worker has started. The worker reports its step once."""
    script = ('import os, struct, time; os.pwrite(int(os.environ["CRUN_STATE_FD"]), b"CRUNBEAT" + struct.pack("<QQ", 40, time.monotonic_ns()), 0); '
              'time.sleep(60)')
    start({**folders, **jobs.preload("late_guardian", LATE_GUARDIAN_START_MS=500)}, "--nproc-per-node=2", *JOB, sys.executable, "-c", script)
    jobs.wait_for(lambda: [w["last_step"] for job in status(folders) for w in workers(job)] == [40, 40], 30, 0.05)


BEATS = """
import os, sys, time
sys.modules["torch"] = None  # an import of it is an error
sys.path.insert(0, sys.argv[1])
from crun_launch import worker
for step in range(1000000):
    worker.beat(step)
    worker.stop_requested()
    time.sleep(0.02 if os.environ["RANK"] == "0" else 0.5)
"""


def test_rate_of_steps_in_one_look(folders):
    """From what a worker reports, without PyTorch: in JSON at once, and in top --once. A worker that stands still has an ever lower one."""
    job = start(folders, "--nproc-per-node=2", *JOB, sys.executable, "-c", BEATS, str(jobs.ROOT / "python"))

    def rates():
        return [w.get("steps_per_s", 0) for found in status(folders) for w in workers(found)]
    jobs.wait_for(lambda: len(rates()) == 2 and min(rates()) > 0, 60, 0.1)
    jobs.wait_for(lambda: rates()[0] > 10 and 0 < rates()[1] <= 2, 60, 0.1)
    assert re.search(r" [0-9.]+ to [0-9.]+ steps/s, slowest rank 1\n", ask(folders, "top", "--once").stdout)
    assert all(w["steps_per_s"] > 0 for w in workers(json.loads(ask(folders, "--json", "top").stdout)))
    os.kill(workers(status(folders)[0])[0]["pid"], signal.SIGSTOP)
    jobs.wait_for(lambda: 0 < rates()[0] < 0.5, 60, 0.1)
    job.kill()
    job.communicate(timeout=60)


def test_status_has_the_share_of_a_cpu(folders):
    job = start(folders, *JOB, "sh", "-c", "while :; do :; done")
    wait_for_state(folders, "running")
    # A look within the first hundredths of a second has no share yet.
    jobs.wait_for(lambda: max(map(int, re.findall(r"running +(\d+)%", ask(folders, "status").stdout)), default=0) > 5, 60, 0.1)
    job.terminate()
    job.communicate(timeout=60)


def test_status_of_a_running_job(folders):
    job = start(folders, "--nproc-per-node=2", "--max-restarts=3", *JOB, "sh", "-c", "[ $RANK = 1 ] && exit 0; exec sleep 60")
    found = wait_for_state(folders, "running")
    jobs.wait_for(lambda: workers(status(folders)[0])[1]["state"] == "succeeded", 30, 0.05)
    found = status(folders)[0]
    assert found["version"] == 1 and found["crun_pid"] == job.pid and found["max_restarts"] == 3
    assert {"job", "generation", "restarts", "nodes"} <= set(found)
    assert abs(found["started"] - time.time()) < 60
    first = workers(found)[0]
    assert (first["rank"], first["state"], first["last_step"], first["hang"]) == (0, "running", None, False)
    assert first["pid"] in jobs.workers(job.pid).values() and first["rss_kib"] > 0
    text = ask(folders, "status").stdout
    assert found["job"] in text and f"{first['pid']}  running" in text and "succeeded" in text
    top = ask(folders, "--json", "top", found["job"][:6])
    assert "cpu_percent" in workers(json.loads(top.stdout))[0]
    assert "CPU" in ask(folders, "top", "--once").stdout
    job.terminate()
    job.communicate(timeout=60)
    assert not os.listdir(folders["XDG_RUNTIME_DIR"] + "/crun")
    assert status(folders) == []


def test_job_that_is_not_there(folders):
    p = ask(folders, "status", "nope")
    assert p.returncode == 3 and "no job 'nope'" in p.stderr and p.stdout == ""
    assert ask(folders, "status").stdout == "no job of yours runs on this node\n"
    assert ask(folders, "history").returncode == 3
    for words in ((), ("nope",), ("--nope", "status"), ("status", "a", "b")):
        assert ask(folders, *words).returncode == 2, words


def test_history_survives_the_job(folders):
    p = jobs.run([jobs.crun(), "--max-restarts=1", "--nproc-per-node=2", *JOB, "sh", "-c",
                  "[ $RANK = 0 ] && exec sleep 60; exit $((TORCHELASTIC_RESTART_COUNT + 4))"], env={**os.environ, **folders})
    assert p.returncode == 1
    shown = ask(folders, "history")
    assert shown.returncode == 0, shown.stderr
    found = json.loads(ask(folders, "--json", "history").stdout)
    assert found["version"] == 1 and found["result"] == "failed" and found["exit_code"] == 1 and found["program"] == "sh"
    assert [(g["generation"], g["restarts"], g["workers"]) for g in found["generations"]] == [(0, 0, 2), (1, 1, 2)]
    reasons = [g["reason"] for g in found["generations"]]
    assert reasons[0].endswith("exit code 4") and reasons[1].endswith("exit code 5")
    assert all(g["started"] <= g["ended"] for g in found["generations"])
    assert "failed with exit code 1" in shown.stdout and "exit code 4" in shown.stdout
    path = f"{folders['XDG_STATE_HOME']}/crun/history.jsonl"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_history_of_a_job_that_runs_and_of_one_that_was_killed(folders):
    job = start(folders, *JOB, "sleep", "60")
    wait_for_state(folders, "running")
    jobs.wait_for(lambda: ask(folders, "history").returncode == 0, 30, 0.05)
    assert f" on {os.uname().nodename}: sleep, runs\n" in ask(folders, "history").stdout
    assert json.loads(ask(folders, "--json", "history").stdout)["runs"] is True
    job.kill()
    job.communicate(timeout=60)
    assert f" on {os.uname().nodename}: sleep, crun was killed\n" in ask(folders, "history").stdout
    assert json.loads(ask(folders, "--json", "history").stdout)["runs"] is False


def test_history_of_runs_with_one_name(folders):
    """Each run for itself, also when two alternate; the last one alone unless all are asked for, and no job with a longer name."""
    def run(code, name="job", **more):
        return jobs.run([jobs.crun(), *JOB, f"--rdzv-id={name}", "sh", "-c", f"exit {code}"], env={**os.environ, **folders}, **more)

    assert run(0).returncode == 0
    beside = start(folders, *JOB, "sleep", "60")
    history = pathlib.Path(folders["XDG_STATE_HOME"]) / "crun" / "history.jsonl"
    jobs.wait_for(lambda: str(beside.pid) in history.read_text())  # it is written a moment later than the workers start
    assert run(3).returncode == 1 and run(0, "job-2").returncode == 0
    beside.terminate()
    beside.communicate(timeout=60)
    shown = ask(folders, "history", "job").stdout
    assert "failed with exit code 1" in shown and shown.count("GENERATION") == 1
    assert shown.endswith("\n2 earlier runs: crunctl history --all job\n")
    found = [json.loads(line) for line in ask(folders, "--json", "history", "--all", "job").stdout.splitlines()]
    assert [(r["job"], r["result"], len(r["generations"])) for r in found] == [("job", "succeeded", 1), ("job", "stopped", 1), ("job", "failed", 1)]
    assert len({r["run"] for r in found}) == 3 and found[1]["crun_pid"] == beside.pid
    assert ask(folders, "history", "--all", "job").stdout.count("GENERATION") == 3
    assert len(ask(folders, "--json", "history", "--all").stdout.splitlines()) == 4


def test_history_of_a_job_that_starts_late(folders):
    """Its first line comes long after crun's start; it is there while the job runs."""
    static = ["--nnodes=2", "--rdzv-backend=static", "--master-addr=127.0.0.1", f"--master-port={nodes.free_port()}", "--no-python", "sleep", "60"]
    history = pathlib.Path(folders["XDG_STATE_HOME"]) / "crun" / "history.jsonl"
    with start(folders, "--node-rank=0", *static) as first:
        time.sleep(0.3)
        with start(folders, "--node-rank=1", *static) as second:
            jobs.wait_for(lambda: jobs.workers(first.pid) and jobs.workers(second.pid), 60)
            jobs.wait_for(lambda: history.exists() and str(first.pid) in history.read_text(), 10)
            second.terminate()
            first.terminate()


def test_history_of_several_nodes_is_that_of_the_first(folders):
    """A home that all nodes share has one file: a large job does not push the user's others out of it."""
    several = ["--nnodes=3", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{nodes.free_port()}",
               "--no-python", "sleep", "0.5"]
    started = [start(folders, *several) for _ in range(3)]
    for p in started:
        p.communicate(timeout=60)
    assert [p.returncode for p in started] == [0, 0, 0]
    lines = jobs.whole_lines(pathlib.Path(folders["XDG_STATE_HOME"]) / "crun" / "history.jsonl")
    assert {line["event"] for line in lines} >= {"start", "end"} and len({line["run"] for line in lines}) == 1, lines
    assert all(line["group_rank"] == 0 for line in lines if "group_rank" in line), lines


def test_history_goes_on_when_its_file_is_removed(folders, tmp_path):
    """As by two renamings while a long job runs."""
    path = f"{folders['XDG_STATE_HOME']}/crun/history.jsonl"
    job = start(folders, "--max-restarts=1", "--restart-pause=0", *JOB, "sh", "-c", f"[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 5; while [ ! -e {tmp_path}/go ]; do sleep 0.1; done; exit 4")
    jobs.wait_for(lambda: os.path.exists(path) and os.path.getsize(path) > 0, 30, 0.05)
    os.unlink(path)
    (tmp_path / "go").touch()
    job.communicate(timeout=60)
    found = json.loads(ask(folders, "--json", "history").stdout)
    assert [g["generation"] for g in found["generations"]] == [1] and found["result"] == "failed"


def test_process_that_has_the_number_of_a_killed_crun(folders):
    """It is another one when it began later than the run, even if it is a crun."""
    job = start(folders, *JOB, "sleep", "60")
    wait_for_state(folders, "running")
    jobs.wait_for(lambda: ask(folders, "history").returncode == 0, 30, 0.05)
    path = f"{folders['XDG_STATE_HOME']}/crun/history.jsonl"
    with open(path) as f:
        lines = [json.loads(line) for line in f]
    for line in lines:
        line["time"] = "2026-01-01T00:00:00.000000000Z"
    with open(path, "w") as f:
        f.writelines(json.dumps(line) + "\n" for line in lines)
    assert json.loads(ask(folders, "--json", "history").stdout)["runs"] is False
    job.terminate()
    job.communicate(timeout=60)


def test_history_is_bounded(folders):
    folder = f"{folders['XDG_STATE_HOME']}/crun"
    os.makedirs(folder)
    with open(f"{folder}/history.jsonl", "w") as f:
        f.write("x" * ((1 << 20) + 1) + "\n")
    assert jobs.run([jobs.crun(), "--no-python", "true"], env={**os.environ, **folders}).returncode == 0
    assert os.path.getsize(f"{folder}/history.jsonl") < 10000 < os.path.getsize(f"{folder}/history.jsonl.1")
    assert json.loads(ask(folders, "--json", "history").stdout)["result"] == "succeeded"


def test_two_jobs_of_one_name_and_a_killed_one(folders):
    """All but the first have their process number in their names; what a crun left that was killed with its guardian is taken over by the
    next one."""
    pair = [start(folders, "--rdzv-id=twin", "--rdzv-backend=c10d", "--nnodes=1", "--no-python", "sleep", "60") for _ in range(6)]
    jobs.wait_for(lambda: len(status(folders)) == len(pair), 30, 0.05)
    assert {job["crun_pid"] for job in status(folders)} == {job.pid for job in pair}
    names = sorted(os.listdir(folders["XDG_RUNTIME_DIR"] + "/crun"))
    for job in pair:  # with their guardians, which would remove the sockets
        job.send_signal(signal.SIGSTOP)
        for guardian in jobs.children(job.pid):
            os.kill(guardian, signal.SIGKILL)
        job.kill()
        job.communicate(timeout=60)
    assert sorted(os.listdir(folders["XDG_RUNTIME_DIR"] + "/crun")) == names
    assert status(folders) == []
    with start(folders, "--rdzv-id=twin", "--rdzv-backend=c10d", "--nnodes=1", "--no-python", "sleep", "60") as later:
        jobs.wait_for(lambda: [job["crun_pid"] for job in status(folders)] == [later.pid], 30, 0.05)
        assert sorted(os.listdir(folders["XDG_RUNTIME_DIR"] + "/crun")) == names
        later.kill()
    jobs.wait_for(lambda: not any(launches.living(job.tag) for job in pair))


@pytest.mark.parametrize("options", [["--standalone", "--rdzv-id=mine"], ["--rdzv-id=mine"]])
def test_name_of_a_job_of_one_node(folders, options, tmp_path):
    """crunctl, its socket and the history have the name that was given; the workers a random one, as with torchrun."""
    job = start(folders, *options, f"--event-log={tmp_path}/log", "--no-python", "sh", "-c", f"echo $TORCHELASTIC_RUN_ID > {tmp_path}/id; exec sleep 60")
    wait_for_state(folders, "running")
    assert [found["job"] for found in status(folders, "mine")] == ["mine"]
    assert os.listdir(folders["XDG_RUNTIME_DIR"] + "/crun") == ["mine.sock"]
    assert json.loads(ask(folders, "--json", "stacks", "mine").stdout)["job"] == "mine"
    jobs.wait_for(lambda: (tmp_path / "id").exists() and (tmp_path / "id").read_text().endswith("\n"))
    job.terminate()
    job.communicate(timeout=60)
    assert json.loads(ask(folders, "--json", "history", "mine").stdout)["result"] == "stopped"
    assert "mine" not in (tmp_path / "id").read_text() and '"run_id":"mine"' in (tmp_path / "log").read_text()


def test_socket_of_a_killed_crun_is_removed(folders):
    """By its guardian; but not what another process has put in its place."""
    path = folders["XDG_RUNTIME_DIR"] + "/crun/job.sock"
    for is_replaced in False, True:
        with start(folders, *JOB, "sleep", "600") as p:
            jobs.wait_for(lambda: jobs.workers(p.pid), 60)  # noqa: B023
            assert os.path.lexists(path)
            if is_replaced:
                os.unlink(path)
                with open(path, "w"):
                    pass
            guardians = jobs.children(p.pid)
            os.kill(p.pid, signal.SIGKILL)
            jobs.wait_for(lambda: not any(os.path.exists(f"/proc/{g}") for g in guardians), 20)  # noqa: B023
        assert os.path.lexists(path) == is_replaced


def test_whole_name_comes_before_its_beginning(folders):
    """status, top and stacks of `job` leave `job-2` out; of `jo` they have both."""
    pair = [start(folders, "--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", f"--rdzv-id={name}", "--no-python", "sleep", "60")
            for name in ("job", "job-2")]
    jobs.wait_for(lambda: [job["state"] for job in status(folders)] == ["running"] * 2, 30, 0.05)
    for command in ("status", "top", "stacks"):
        for asked, names in (("job", ["job"]), ("job-2", ["job-2"]), ("jo", ["job", "job-2"])):
            p = ask(folders, "--json", command, asked)
            assert p.returncode == 0 and sorted(json.loads(line)["job"] for line in p.stdout.splitlines()) == names, (command, asked, p)
    end_jobs(*pair)


def open_clients(folders, n):
    path, = [f"{folders['XDG_RUNTIME_DIR']}/crun/{name}" for name in os.listdir(folders["XDG_RUNTIME_DIR"] + "/crun")]
    clients = []
    for _ in range(n):
        clients.append(socket.socket(socket.AF_UNIX))
        clients[-1].connect(path)
    return clients


def test_clients_that_send_nothing_delay_nothing(folders):
    """More than are kept, one that sends too much and one that asks for something else."""
    job = start(folders, *JOB, "sleep", "60")
    wait_for_state(folders, "running")
    talker, other = open_clients(folders, 2)
    other.sendall(b"nonsense\n")
    assert "does not know" in other.makefile().read()
    talker.sendall(b"x" * 1000)
    with pytest.raises(ConnectionResetError):  # it had sent more than is read
        talker.recv(100)
    silent = open_clients(folders, 20)
    begin = time.monotonic()
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=60)
    assert time.monotonic() - begin < 20 and job.returncode == 1
    for client in (talker, other, *silent):
        client.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can run as two users")
def test_another_user_gets_no_answer(folders):
    """Also where the folder lets that user in."""
    job = start(folders, *JOB, "sleep", "60")
    wait_for_state(folders, "running")
    folder = folders["XDG_RUNTIME_DIR"] + "/crun"
    path, = [f"{folder}/{name}" for name in os.listdir(folder)]
    for place, mode in ((folders["XDG_RUNTIME_DIR"], 0o755), (folder, 0o755), (path, 0o777)):
        os.chmod(place, mode)
    nobody = pwd.getpwnam("nobody").pw_uid
    code = ("import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.settimeout(30)\n"
            "try:\n  s.sendall(b'status\\n'); sys.exit(len(s.recv(100)))\n"
            "except (ConnectionResetError, BrokenPipeError):\n  pass")
    p = subprocess.run(["python3", "-c", code, path], preexec_fn=lambda: os.setresuid(nobody, nobody, nobody), cwd="/", timeout=60,
                       env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert p.returncode == 0, p.stderr
    assert status(folders)[0]["state"] == "running"
    job.terminate()
    job.communicate(timeout=60)


def test_folder_of_another_owner_is_not_used(folders):
    """A folder that somebody prepared in a shared place; crun runs without the socket."""
    os.symlink("/tmp", folders["XDG_RUNTIME_DIR"] + "/crun")
    p = jobs.run([jobs.crun(), *JOB, "true"], env={**os.environ, **folders})
    assert p.returncode == 0 and p.stderr == ""
    assert not [name for name in os.listdir("/tmp") if name.endswith(".sock")]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can run as two users")
def test_user_without_a_runtime_folder():
    """The socket is in a folder of its own below /tmp; root may ask as well."""
    user = pwd.getpwnam("nobody").pw_uid
    environment = {"PATH": os.environ["PATH"], "PET_TIMESTAMPS": "no"}

    def become():
        os.setresuid(user, user, user)

    def ask_it():
        return subprocess.run([CRUNCTL, "--json", "status"], preexec_fn=become, cwd="/", env=environment, timeout=60,
                              capture_output=True, text=True).stdout

    job = subprocess.Popen([jobs.crun(), *JOB, "sleep", "60"], preexec_fn=become, cwd="/", env=environment, stderr=subprocess.PIPE)
    found = json.loads(jobs.wait_for(ask_it, 30, 0.05))
    assert found["crun_pid"] == job.pid
    path = f"/tmp/crun-{user}/{found['job']}.sock"
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
    assert json.loads(ask({}, "--json", "--socket", path, "status").stdout)["crun_pid"] == job.pid
    job.terminate()
    job.communicate(timeout=60)
    assert not os.path.exists(path)


FAKE_CRUN = """
import json, os, socket, sys
path, uid = sys.argv[1], int(sys.argv[2])
s = socket.socket(socket.AF_UNIX)
s.bind(path)
os.chmod(path, 0o777)
if uid:
    os.chown(path, int(sys.argv[3]), -1)
    os.setresuid(uid, uid, uid)
s.listen(8)
print("ready", flush=True)
while True:
    client, _ = s.accept()
    request = client.recv(64)
    if request == b"status\\n":
        client.sendall(json.dumps({"version": 1, "job": "fake\\x1b]0;title\\x07\\x9b2J\\n", "program": "p", "state": "running", "crun_pid": 1, "generation": 0,
                                   "restarts": 0, "max_restarts": 0, "n_nodes": 1, "started": 1, "nodes": [
                                       {"host": "h", "group_rank": 0, "workers": [{"rank": 0, "local_rank": 0, "pid": 0, "state": "running", "hang": False,
                                                                                   "log": sys.argv[4]}]}]}, ensure_ascii=False).encode())
    elif request == b"stacks\\n":
        client.sendall(json.dumps({"version": 1, "job": "fake", "groups": ["rank 0 at \\x1b[2J\\x9b"]}, ensure_ascii=False).encode())
    client.close()
"""


def fake_crun(path, uid, socket_owner=0, log=""):
    """A process of this user that answers as a crun does, with texts for a terminal in its answers."""
    p = subprocess.Popen([sys.executable, "-c", FAKE_CRUN, path, str(uid), str(socket_owner), log], stdout=subprocess.PIPE, text=True)
    assert p.stdout.readline() == "ready\n"
    return p


@pytest.mark.skipif(os.getuid() != 0, reason="only root can run as two users")
@pytest.mark.parametrize("owner_of", ["nothing", "the folder", "the socket", "the process", "all"])
def test_socket_of_another_user_is_refused(folders, owner_of, tmp_path):
    """Root and its own processes are trusted, and no third user's folder, socket or process; root may name a socket of one user."""
    other, third = pwd.getpwnam("nobody").pw_uid, pwd.getpwnam("daemon").pw_uid
    folder = folders["XDG_RUNTIME_DIR"] + "/crun"
    os.mkdir(folder, 0o755)
    os.chmod(folders["XDG_RUNTIME_DIR"], 0o755)
    log = tmp_path / "log"
    log.write_text("a line of a file\n")
    if owner_of in ("the folder", "all"):
        os.chown(folder, other, -1)
    process = fake_crun(f"{folder}/job.sock", other if owner_of in ("the process", "all") else 0,
                        other if owner_of == "all" else 0, str(log))
    if owner_of == "the socket":
        os.chown(f"{folder}/job.sock", other, -1)
    try:
        for command in ("status", "top", "stacks"):
            p = ask(folders, command)
            if owner_of == "nothing":
                assert p.returncode == 0 and "fake" in p.stdout, p
            else:
                assert p.returncode in (0, 1, 3) and "fake" not in p.stdout and "belongs to another user" in p.stderr, p
        named = ask(folders, "--socket", f"{folder}/job.sock", "status")
        assert (named.returncode, "fake" in named.stdout) == (0, True), named
        top = ask(folders, "--socket", f"{folder}/job.sock", "--json", "top")
        assert ("a line of a file" in top.stdout) == (owner_of == "nothing"), top
        os.chown(f"{folder}/job.sock", third, -1)
        named = ask(folders, "--socket", f"{folder}/job.sock", "status")
        assert (named.returncode == 0) == (owner_of in ("nothing", "the socket")), named
    finally:
        process.kill()
        process.communicate()


def test_texts_of_others_are_printable(folders):
    """Names and lines of an answer are no commands for the terminal, in text and in JSON."""
    os.mkdir(folders["XDG_RUNTIME_DIR"] + "/crun", 0o700)
    process = fake_crun(folders["XDG_RUNTIME_DIR"] + "/crun/job.sock", 0)
    try:
        for words in (["status"], ["top"], ["stacks"], ["--json", "status"], ["--json", "top"], ["--json", "stacks"]):
            p = ask(folders, *words)
            assert p.returncode == 0 and "fake" in p.stdout
            assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", p.stdout), p.stdout
        assert json.loads(ask(folders, "--json", "status").stdout)["job"] == "fake\x1b]0;title\x07\x9b2J\n"
    finally:
        process.kill()
        process.communicate()


def test_full_disk_is_reported(folders):
    os.mkdir(folders["XDG_RUNTIME_DIR"] + "/crun", 0o700)
    process = fake_crun(folders["XDG_RUNTIME_DIR"] + "/crun/job.sock", 0)
    try:
        for words in (["status"], ["--json", "status"], ["top"], ["--json", "top"], ["stacks"], ["--json", "stacks"], ["--help"], ["--version"]):
            with open("/dev/full", "w") as full:
                p = subprocess.run([CRUNCTL, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, env={**os.environ, **folders})
            assert p.returncode == 1 and p.stderr == "crunctl: cannot write to standard output: No space left on device\n", (words, p)
    finally:
        process.kill()
        process.communicate()


def test_named_socket_has_to_answer(folders):
    for path in ("/nonexistent/job.sock", folders["XDG_RUNTIME_DIR"] + "/none.sock"):
        for command in ("status", "top", "stacks"):
            p = ask(folders, "--socket", path, command)
            assert p.returncode == 1 and p.stderr == f"crunctl: {path}: No such file or directory\n", p


def top_on_terminal(folders, rows, columns, *args):
    """(process, its terminal)"""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(folders)
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.execv(CRUNCTL, [CRUNCTL, "top", *args])
    return pid, terminal


def pictures(seen):
    """Whole pictures, as lines without escape sequences."""
    return [[re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in part.decode(errors="replace").split("\r\n")]
            for part in seen.split(b"\x1b[H")[1:-1]]


def read_until(terminal, seen, done):
    deadline = time.monotonic() + 60
    while not done(seen):
        assert time.monotonic() < deadline, seen
        seen += os.read(terminal, 65536)
    return seen


def test_top_on_a_terminal(folders):
    """80 x 24: redrawn in place, never wider or longer than the terminal; a new size and a key are drawn at once."""
    job = start(folders, "--nproc-per-node=40", *JOB, "sleep", "60")
    wait_for_state(folders, "running")
    pid, terminal = top_on_terminal(folders, 24, 80)
    try:
        seen = read_until(terminal, b"", lambda seen: len(pictures(seen)) >= 2)
        os.write(terminal, b"j")
        seen = read_until(terminal, seen, lambda seen: b"more ranks" in seen.split(b"\x1b[H")[-1] and len(pictures(seen)) >= 3)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 60, 0, 0))
        seen = read_until(terminal, seen, lambda seen: len(pictures(seen)[-1]) == 12)
        os.write(terminal, b"q")
        while piece := os.read(terminal, 65536):
            seen += piece
    except OSError:
        pass  # EIO: it has ended
    assert os.waitpid(pid, 0)[1] == 0, seen
    assert seen.startswith(b"\x1b[?1049h") and seen.endswith(b"\x1b[?1049l")
    first, last = pictures(seen)[1], pictures(seen)[-1]
    assert len(first) == 24 and all(len(line) <= 80 for line in first), first
    assert "0%" in first[4] and first[-2].startswith("... ") and first[-1].startswith("q ends"), first
    assert len(last) == 12 and all(len(line) <= 60 for line in last), last
    assert last[4].split()[0] == "1", last
    job.terminate()
    job.communicate(timeout=60)


def test_top_shows_the_last_line(folders, tmp_path):
    job = start(folders, "--nproc-per-node=2", "--redirects=3", f"--log-dir={tmp_path}", *JOB, "sh", "-c",
                "echo begin; printf 'step 1\\rstep 2'; exec sleep 60")
    wait_for_state(folders, "running")
    jobs.wait_for(lambda: ask(folders, "top", "--once").stdout.count("step 2") == 2, 30, 0.2)
    top = json.loads(ask(folders, "--json", "top").stdout)
    assert [w["last_line"] for w in workers(top)] == ["step 2"] * 2
    assert workers(top)[0]["log"].startswith(str(tmp_path)) and workers(top)[0]["log"].endswith("/0/stdout.log")
    job.terminate()
    job.communicate(timeout=60)


@pytest.mark.parametrize("driver", ["percent=97 free=25", "hung=1"])
def test_top_with_a_driver(folders, driver, tmp_path):
    """What NVML has is shown; one that never answers delays top by its limit, once."""
    library = jobs.build_folder() / "tests" / "fakes" / "libfake_nvml.so"
    os.symlink(library, tmp_path / "libnvidia-ml.so.1")
    job = start(folders, *JOB, "sleep", "60")
    wait_for_state(folders, "running")
    begin = time.monotonic()
    p = jobs.run([CRUNCTL, "--json", "top"], timeout=60,
                 env={**os.environ, **folders, "LD_PRELOAD": str(library), "LD_LIBRARY_PATH": str(tmp_path), "FAKE_NVML": driver})
    assert p.returncode == 0, p.stderr
    node, = json.loads(p.stdout)["nodes"]
    if driver == "hung=1":
        assert "gpus" not in node and 1.5 < time.monotonic() - begin < 30
    else:
        assert node["gpus"] == [{"index": 0, "percent": 0, "used_mib": 0, "total_mib": 81920},
                                {"index": 1, "percent": 97, "used_mib": 61440, "total_mib": 81920}]
    job.terminate()
    job.communicate(timeout=60)


# ---- other nodes


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start_node(folders, folder, port, *options, name="two"):
    """A node of a job of two, with a folder of sockets of its own, as if it were another machine."""
    os.makedirs(folder, mode=0o700)
    own = {**folders, "XDG_RUNTIME_DIR": folder}
    return own, start(own, "--nnodes=2", "--nproc-per-node=30", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-backend=c10d", f"--rdzv-id={name}",
                      *options, "--no-python", "sleep", "60")


def all_ranks(job):
    return sorted(w["rank"] for node in job["nodes"] for w in node["workers"])


def end_jobs(*started):
    for job in started:
        job.terminate()
    for job in started:
        job.communicate(timeout=60)


def test_other_nodes_where_the_rendezvous_is(folders):
    """The node that serves it shows all ranks; without a secret the other one shows its own. Agents report in pieces."""
    port = free_port()
    first, a = start_node(folders, folders["XDG_RUNTIME_DIR"] + "/a", port)
    second, b = start_node(folders, folders["XDG_RUNTIME_DIR"] + "/b", port)
    jobs.wait_for(lambda: {len(n["workers"]) for j in status(first) + status(second) for n in j["nodes"] if j["state"] == "running"} == {30}, 30, 0.1)
    counts = sorted(len(all_ranks(status(own)[0])) for own in (first, second))
    assert counts == [30, 60]
    host = first if len(all_ranks(status(first)[0])) == 60 else second

    def other_runs():  # a report is at most a second old
        other = next(n for n in status(host)[0]["nodes"] if n.get("state"))
        return all(w.get("rss_kib", 0) > 0 and w["state"] == "running" for w in other["workers"])
    jobs.wait_for(other_runs, 30, 0.1)
    job, = status(host)
    assert all_ranks(job) == list(range(60)) and job["rendezvous"].endswith(f":{port}")
    assert {n.get("state") for n in job["nodes"]} == {None, "running"}
    top = json.loads(ask(host, "--json", "top").stdout)
    assert all(w["cpu_percent"] >= 0 for node in top["nodes"] if "state" not in node for w in node["workers"])
    assert "... " not in ask(host, "top", "--once").stdout
    end_jobs(a, b)


def test_other_nodes_with_a_secret(folders, tmp_path):
    """Every node shows all ranks; a rendezvous is asked over TCP with the secret, and with no other."""
    made = ask({**folders, "XDG_CONFIG_HOME": str(tmp_path)}, "secret", "new")
    path = f"{tmp_path}/crun/secret"
    assert made.returncode == 0 and made.stdout == path + "\n" and stat.S_IMODE(os.stat(path).st_mode) == 0o600
    again = ask({**folders, "XDG_CONFIG_HOME": str(tmp_path)}, "secret", "new")
    assert again.returncode == 1 and "exists" in again.stderr
    port = free_port()
    secret = {**folders, "CRUN_SECRET_FILE": path}
    first, a = start_node(secret, folders["XDG_RUNTIME_DIR"] + "/a", port)
    second, b = start_node(secret, folders["XDG_RUNTIME_DIR"] + "/b", port)
    jobs.wait_for(lambda: all(len(status(own)) == 1 and all_ranks(status(own)[0]) == list(range(60)) for own in (first, second)), 30, 0.1)
    endpoint = f"127.0.0.1:{port}"
    asked = json.loads(ask(secret, "--json", "--endpoint", endpoint, "status", "two").stdout)
    assert all_ranks(asked) == list(range(60)) and asked["crun_pid"] == 0
    assert "two: running" in ask(secret, "--endpoint", endpoint, "status", "two").stdout
    other = tmp_path / "other"
    assert ask(folders, "--secret-file", other, "secret", "new").returncode == 0
    for options in (["--secret-file", other], []):
        p = ask({**folders, "XDG_CONFIG_HOME": "/nonexistent"}, *options, "--endpoint", endpoint, "status", "two")
        assert p.returncode == 1 and p.stdout == "" and "secret" in p.stderr, p
    p = ask(secret, "--endpoint", endpoint, "status")
    assert p.returncode == 1 and p.stdout == "", "the administrator's key of a job's own rendezvous"
    once = ["sh", "-c", f'exec 9<{path}; CRUN_SECRET_FD=9 exec "$@"', "sh", CRUNCTL, "--json", "--endpoint", endpoint, "top", "two"]
    p = jobs.run(once, timeout=60, env={**os.environ, **folders})  # top looks twice, and a descriptor can be read once
    assert p.returncode == 0 and all_ranks(json.loads(p.stdout)) == list(range(60)), p.stderr
    end_jobs(a, b)


def test_options_with_an_equals_sign(folders, tmp_path):
    """As of all other programs: --NAME=VALUE is --NAME VALUE."""
    path = f"{folders['XDG_RUNTIME_DIR']}/crund.sock"
    secret = tmp_path / "secret"
    assert ask(folders, f"--secret-file={secret}", "secret", "new").returncode == 0 and secret.exists()
    with Crund(jobs.build_folder(), "--listen-unix", path):
        for p in (ask(folders, f"--endpoint={path}", "--json", "status", "no"), ask(folders, "--json", "status", f"--endpoint={path}", "no")):
            assert p.returncode == 3 and f"the rendezvous {path} has no job 'no'" in p.stderr, p
    assert "No such file" in ask(folders, f"--socket={tmp_path}/none", "status").stderr
    for options, words in (([f"--tls-cert={secret}"], "all three are needed"), (["--endpoint"], "a value is missing behind --endpoint"),
                           (["--json=1"], "--json=1: the option takes no value"), (["--endpoints=x"], "unknown option '--endpoints=x'")):
        p = ask(folders, "status", *options)
        assert p.returncode == 2 and words in p.stderr, p


def test_endpoints_are_asked_in_turn(folders, tmp_path):
    """One that does not answer is named only when no other one answers."""
    runtime = folders["XDG_RUNTIME_DIR"]
    path = f"{runtime}/crund.sock"
    dead = f"127.0.0.1:{free_port()}"
    secret = str(tmp_path / "secret")
    assert ask(folders, "--secret-file", secret, "secret", "new").returncode == 0
    with Crund(jobs.build_folder(), "--secret-file", secret, "--listen-unix", path) as crund:
        own = {**folders, "CRUN_SECRET_FILE": secret}
        _, job = start_node(own, f"{runtime}/0", crund.port, "--nnodes=1:2", "--rdzv-conf=last_call_timeout=1", name="red")
        listed = f"{runtime}/none.sock,{dead},127.0.0.1:{crund.port},{path}"
        jobs.wait_for(lambda: "red: running" in ask(own, "--endpoint", path, "status", "red").stdout, 30, 0.2)
        p = ask(own, f"--endpoint={listed}", "status", "red")
        assert p.returncode == 0 and p.stderr == "" and "red" in p.stdout, p
        p = ask(own, f"--endpoint={runtime}/none.sock,{dead}", "status", "red")
        assert p.returncode == 1 and p.stdout == "", p
        assert [line.split(": ")[1] for line in p.stderr.splitlines()] == [f"{runtime}/none.sock", dead], p.stderr
        end_jobs(job)


def test_endpoints_that_do_not_answer_delay_the_next_ones_for_a_moment(folders, tmp_path):
    """A stopped crund accepts the connection and is silent. Alone it is waited for, and named once."""
    runtime, secret = folders["XDG_RUNTIME_DIR"], str(tmp_path / "secret")
    assert ask(folders, "--secret-file", secret, "secret", "new").returncode == 0
    paths = [f"{runtime}/{name}.sock" for name in ("stopped", "crund")]
    stopped, crund = (Crund(jobs.build_folder(), "--secret-file", secret, "--listen-unix", path) for path in paths)
    own = {**folders, "CRUN_SECRET_FILE": secret}

    def timed(*endpoints):
        started = time.monotonic()
        p = ask(own, f"--endpoint={','.join(endpoints)}", "status", "none")
        return p, time.monotonic() - started

    with stopped, crund:
        os.kill(stopped.pid, signal.SIGSTOP)
        silent = [paths[0], f"127.0.0.1:{stopped.port}"]
        for answers in (paths[1], f"127.0.0.1:{crund.port}"):
            p, seconds = timed(*silent, answers)
            assert p.returncode == 3 and "does not answer" not in p.stderr, p
            assert seconds < 4, "each of the two would have been waited for until its end: 6 s"
        dead = f"127.0.0.1:{free_port()}"
        p, seconds = timed(paths[0], dead)
        assert p.returncode == 1 and [line.split(": ")[1] for line in p.stderr.splitlines()] == [paths[0], dead], p
        assert "does not answer" in p.stderr and seconds > 3, "it was asked with patience before the command failed"


def test_jobs_of_crund(folders, tmp_path):
    """Over its unix socket, for its own user; over TCP with the administrator's secret. A TCP client without one gets nothing."""
    secret, path = str(tmp_path / "secret"), folders["XDG_RUNTIME_DIR"] + "/crund.sock"
    assert ask(folders, "--secret-file", secret, "secret", "new").returncode == 0
    with Crund(jobs.build_folder(), "--secret-file", secret, "--listen-unix", path) as crund:
        own = {**folders, "CRUN_SECRET_FILE": secret}
        started = [start_node(own, f"{folders['XDG_RUNTIME_DIR']}/{job}{node}", crund.port, name=job) for job in ("red", "blue") for node in (0, 1)]

        def look(*args):
            p = ask(own, "--json", *args)
            assert p.returncode == 0, p.stderr
            return {job["job"]: job for job in map(json.loads, p.stdout.splitlines())}
        for where in (path, f"127.0.0.1:{crund.port}"):
            jobs.wait_for(lambda: [all_ranks(job) for job in look("--endpoint", where, "status").values()] == [list(range(60))] * 2, 30, 0.2)
            assert list(look("--endpoint", where, "status", "red")) == ["red"]
        p = ask(own, "--endpoint", path, "status", "nope")
        assert p.returncode == 3 and f"the rendezvous {path} has no job 'nope'" in p.stderr, p.stderr
        assert len(ask(own, "--endpoint", path, "top", "--once").stdout.splitlines()) > 120
        with crund.client() as client:  # in the clear
            client.send(OPENING + frame({"look": {}}))
            client.read(len(OPENING))
            answer = client.read(4)
            assert b"refused" in client.read(struct.unpack("<I", answer)[0])
        end_jobs(*(job for _, job in started))


def test_stacks_asked_for_on_two_nodes_at_once(folders):
    """The third node sends its ranks to both."""
    with Crund(jobs.build_folder()) as crund:
        nodes = [start_node(folders, f"{folders['XDG_RUNTIME_DIR']}/{node}", crund.port, "--nnodes=3", "--nproc-per-node=2") for node in range(3)]

        def run():
            return all([w["state"] for j in status(own) for w in workers(j)] == ["running"] * 2 for own, _ in nodes)
        jobs.wait_for(run, 60, 0.2)
        for _ in range(3):
            asked = [subprocess.Popen([CRUNCTL, "stacks", "two"], stdout=subprocess.PIPE, text=True, env={**os.environ, **own}) for own, _ in nodes[:2]]
            for p in asked:
                out = p.communicate(timeout=60)[0]
                assert jobs.ranks_in(out) == list(range(6)) and "stopped" not in out, out
        end_jobs(*(job for _, job in nodes))


def test_stacks_of_crund_jobs(folders, tmp_path):
    """Of all nodes of the job that is named, over the unix socket and over TCP; from any of its nodes as well."""
    secret, path = str(tmp_path / "secret"), folders["XDG_RUNTIME_DIR"] + "/crund.sock"
    assert ask(folders, "--secret-file", secret, "secret", "new").returncode == 0
    with Crund(jobs.build_folder(), "--secret-file", secret, "--listen-unix", path) as crund:
        own = {**folders, "CRUN_SECRET_FILE": secret}
        nodes = [start_node(own, f"{folders['XDG_RUNTIME_DIR']}/{job}{node}", crund.port, f"--nnodes={size}", "--nproc-per-node=2",
                            "--rdzv-conf=last_call_timeout=1", name=job) for job, size, node in (("red", "2", 0), ("red", "2", 1), ("blue", "1:2", 0))]

        def has_ranks(job, ranks):
            p = ask(own, "--json", "--endpoint", path, "status", job)
            return p.returncode == 0 and p.stdout and [w["state"] for n in json.loads(p.stdout)["nodes"] for w in n["workers"]] == ["running"] * ranks
        jobs.wait_for(lambda: has_ranks("red", 4) and has_ranks("blue", 2), 30, 0.2)
        for where in (path, f"127.0.0.1:{crund.port}"):
            for job, ranks in (("red", [0, 1, 2, 3]), ("blue", [0, 1])):
                p = ask(own, "--endpoint", where, "stacks", job)
                assert p.returncode == 0 and f"job {job}" in p.stdout and jobs.ranks_in(p.stdout) == ranks, (p.stdout, p.stderr)
                answer = json.loads(ask(own, "--json", "--endpoint", where, "stacks", job).stdout)
                assert answer["version"] == 1 and answer["job"] == job and jobs.ranks_in(" ".join(answer["groups"])) == ranks, answer
        for folder, _ in nodes[:2]:
            p = ask(folder, "stacks", "red")
            assert p.returncode == 0 and jobs.ranks_in(p.stdout) == [0, 1, 2, 3], (p.stdout, p.stderr)
        p = ask(own, "--endpoint", path, "stacks", "nope")
        assert p.returncode == 3 and "no job 'nope'" in p.stderr, p
        assert ask(own, "--endpoint", path, "stacks").returncode == 2
        assert ask({**folders, "XDG_CONFIG_HOME": "/nonexistent"}, "--endpoint", f"127.0.0.1:{crund.port}", "stacks", "red").returncode == 1
        end_jobs(*(job for _, job in nodes))


def test_unfit_node_of_an_elastic_job(folders):
    """On the node that serves the rendezvous, and on its own."""
    port = free_port()
    def node(name, check):
        folder = folders["XDG_RUNTIME_DIR"] + "/" + name
        os.makedirs(folder, mode=0o700)
        own = {**folders, "XDG_RUNTIME_DIR": folder}
        return own, start(own, "--nnodes=1:2", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-backend=c10d", "--rdzv-id=two", "--rdzv-conf=last_call_timeout=1",
                          f"--health-check={check}", "--no-python", "sleep", "60")
    first, a = node("a", "true")
    wait_for_state(first, "running")
    second, b = node("b", "false")

    def states(own):
        return sorted(n.get("state", "") for job in status(own) for n in job["nodes"])
    jobs.wait_for(lambda: states(first) == ["", "unfit"] and states(second) == ["unfit"], 30, 0.1)
    for own in (first, second):
        shown = ask(own, "status").stdout
        assert shown.count("unfit: its health check failed") == 1 and shown.count("running  ") == (own is first), shown
    end_jobs(b, a)


def test_unfit_node_is_shown(folders):
    """One that its health check leaves out, in the state that the rendezvous has of it; the daemon goes on."""
    path = folders["XDG_RUNTIME_DIR"] + "/crund.sock"
    with Crund(jobs.build_folder(), "--listen-unix", path) as crund:
        with Agent(crund.port, max_nodes=2) as ill, Agent(crund.port, max_nodes=2) as well:
            ill.report = {"phase": "stopping", "unfit": "GPU 3 has Xid 79"}
            ill.join().view("wait")
            well.join().start()
            p = ask(folders, "--json", "--endpoint", path, "status")
            assert p.returncode == 0, p.stderr
            assert sorted(n["state"] for n in json.loads(p.stdout)["nodes"]) == ["running", "unfit"]
            assert "unfit" in ask(folders, "--endpoint", path, "status").stdout


def test_history_of_a_rendezvous_is_refused(folders):
    """The one source is the file on the first node; the sentence names it, whether the rendezvous answers or not."""
    p = ask(folders, "--endpoint", folders["XDG_RUNTIME_DIR"] + "/none.sock", "history", "red")
    assert p.returncode == 2 and p.stdout == "", p
    assert "a rendezvous keeps no history any more; crunctl history on the first node of the job has it" in p.stderr, p.stderr


def test_nothing_is_sent_while_nobody_looks(folders):
    """An agent is asked to report when its job is looked at, and only when its hello has that it can."""
    path = folders["XDG_RUNTIME_DIR"] + "/crund.sock"
    with Crund(jobs.build_folder(), "--listen-unix", path) as crund:
        with Agent(crund.port, job="new", can_report=True).join() as new, Agent(crund.port, job="old").join() as old:
            new.start()
            old.start()
            p = ask(folders, "--json", "--endpoint", path, "status")
            assert p.returncode == 0, p.stderr
            assert [[n["workers"] for n in json.loads(line)["nodes"]] for line in p.stdout.splitlines()] == [[[]], [[]]]
            assert new.frame() == {"watch": 5000}
            node = {"host": "h", "group_rank": 0, "workers": [
                {"rank": 0, "local_rank": 0, "pid": 1, "state": "running", "hang": False}]}
            for piece in ({"piece": 1, "pieces": 2}, {"piece": 0, "pieces": 1}):  # the first is out of order, and dropped
                new.send_body({"status": {**piece, "node": node}})
            jobs.wait_for(lambda: [len(n["workers"]) for line in ask(folders, "--json", "--endpoint", path, "status", "new").stdout.splitlines()
                                   for n in json.loads(line)["nodes"]] == [1], 30, 0.1)
            old.send_body({"status": {"piece": 0, "pieces": 1, "node": node}})
            assert json.loads(ask(folders, "--json", "--endpoint", path, "status", "old").stdout)["nodes"][0]["workers"] == []
            for agent in (new, old):
                agent.alive()
                while agent.frame() is not None:
                    pass


def frame(body):
    text = json.dumps(body).encode()
    return struct.pack("<I", len(text)) + text
