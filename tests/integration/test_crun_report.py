"""What crun says of ends that torchrun cannot tell apart: OOM killer, signals, core dumps, stuck and stopped workers."""

import json
import os
import pathlib
import pwd
import resource
import signal
import socket
import subprocess
import sys
import time

import pytest

import cgroups
import jobs
import launches
import nodes as nodes_lib


def crun(*args, environment=None, **more):
    return jobs.run([jobs.crun(), "--standalone", *map(str, args)], timeout=60,
                    env={"OMP_NUM_THREADS": "1", **os.environ, **(environment or {})}, **more)


def said(p):
    """Lines of the report before the table."""
    return [line for line in p.stderr.splitlines() if line.startswith("crun: ") and not jobs.is_stop_notice(line)]


needs_memory_groups = pytest.mark.skipif(not cgroups.can("memory"), reason="cannot make a memory cgroup here")


@needs_memory_groups
def test_oom_killer_is_named():
    hungry = f"test $RANK = 1 && exec {sys.executable} -c 'x = bytearray(1 << 30); input()'; exec sleep 60"
    with cgroups.memory(64 << 20) as group:
        p = crun("--nproc-per-node=2", "--no-python", "sh", "-c", hungry, preexec_fn=lambda: cgroups.enter(group))
    assert p.returncode == 1
    lines = said(p)
    assert "rank 1" in lines[0] and "failed first" in lines[0] and "signal 9 (SIGKILL)" in lines[0]
    assert "OOM killer has killed 1 process of this cgroup; rank 1 had used" in lines[1]
    assert int(lines[1].rsplit(" ", 2)[1]) > 20  # MiB
    assert "rank 0" in lines[2] and "crun had asked them to stop" in lines[2]


def killed_from_outside(tmp_path, sig, *args):
    p = launches.start(["--standalone", "--nproc-per-node=2", *args, "--no-python", "sleep", "60"], stderr=subprocess.PIPE, text=True)
    pid = jobs.wait_for(lambda: len(w := jobs.workers(p.pid)) == 2 and w[1])
    os.kill(pid, sig)
    _, p.stderr_text = p.communicate(timeout=60)
    return p


def test_kill_from_outside_is_told_apart():
    p = killed_from_outside(None, signal.SIGKILL)
    lines = [line for line in p.stderr_text.splitlines() if "OMP" not in line and not jobs.is_stop_notice(line)]
    assert p.returncode == 1 and "that signal did not come from crun" in lines[1]
    assert "has killed" not in p.stderr_text
    p = killed_from_outside(None, signal.SIGTERM, "--exit-code=worker")
    assert p.returncode == 143 and "that signal did not come from crun" in p.stderr_text


def test_who_fails_at_the_same_time_was_not_stopped():
    """crun stands still meanwhile, so it can have told nobody to stop before all three had failed."""
    p = launches.start(["--standalone", "--nproc-per-node=4", "--no-python", "sleep", "60"], stderr=subprocess.PIPE, text=True)
    workers = jobs.wait_for(lambda: len(w := jobs.workers_named(p.pid, "sleep")) == 4 and w)
    os.kill(p.pid, signal.SIGSTOP)
    jobs.wait_for(lambda: launches.state(p.pid)[1] == "T")
    for rank in range(3):
        os.kill(workers[rank], signal.SIGKILL)
    jobs.wait_for(lambda: not any(os.path.exists(f"/proc/{workers[rank]}") for rank in range(3)))
    os.kill(p.pid, signal.SIGCONT)
    _, err = p.communicate(timeout=60)
    err = "\n".join(line for line in err.splitlines() if not jobs.is_stop_notice(line))
    assert err.count("killed by signal 9") == 3, err
    after, stopped = (line for line in err.splitlines() if line.startswith(("crun: failed after that:", "crun: ended after crun")))
    assert after.count("killed by signal 9 (SIGKILL)") == 2 and "rank 3" not in after, err
    assert stopped == "crun: ended after crun had asked them to stop: rank 3 (killed by signal 15 (SIGTERM))", err


def test_who_told_crun_to_stop():
    p = launches.start(["--standalone", "--no-python", "sleep", "60"], stderr=subprocess.PIPE, text=True)
    jobs.wait_for(lambda: jobs.workers(p.pid))
    script = f"import os, sys; os.kill({p.pid}, 15); sys.stdin.read()"  # it lives until crun has looked at it
    messenger = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE)
    _, err = p.communicate(timeout=60)
    messenger.communicate(timeout=60)
    assert f"crun: stopped by SIGTERM from process {messenger.pid} (python" in err, err
    assert "of user" not in err


@pytest.mark.skipif(os.getuid() != 0, reason="only root can run as two users")
def test_another_user_s_signal_is_told():
    nobody = pwd.getpwnam("nobody").pw_uid
    p = launches.start(["--standalone", "--log-dir=/dev/null", "--no-python", "sleep", "60"], stderr=subprocess.PIPE, text=True,
                       preexec_fn=lambda: os.setresuid(nobody, nobody, nobody), cwd="/")
    jobs.wait_for(lambda: jobs.workers(p.pid))
    p.terminate()
    _, err = p.communicate(timeout=60)
    assert f"from process {os.getpid()}" in err and " of user 0" in err


def dumps_core(tmp_path):
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    os.chdir(tmp_path)


def test_core_dump(tmp_path):
    probe = subprocess.Popen(["sh", "-c", "kill -SEGV $$"], preexec_fn=lambda: dumps_core(tmp_path))
    if not os.WCOREDUMP(os.waitpid(probe.pid, 0)[1]):
        pytest.skip("processes leave no core dumps here")
    p = crun("--no-python", "sh", "-c", "kill -SEGV $$$$", preexec_fn=lambda: dumps_core(tmp_path))
    assert "killed by signal 11 (SIGSEGV), core dumped" in said(p)[0]
    pattern = pathlib.Path("/proc/sys/kernel/core_pattern").read_text().strip()
    assert f"its core dump went to {'the program ' if pattern[0] == '|' else ''}{pattern.lstrip('|')}" in said(p)[1]


def test_stopped_rank_is_woken_to_stop(tmp_path):
    """SIGSTOP to a rank: it hears of the end of the job by SIGTERM, not by SIGKILL after the timeout."""
    worker = f"trap 'touch {tmp_path}/$RANK.told; exit 0' TERM; touch {tmp_path}/$RANK.up; while :; do sleep 0.05; done"
    p = launches.start(["--standalone", "--nproc-per-node=2", "--shutdown-timeout=300", "--no-python", "sh", "-c", worker],
                       stderr=subprocess.PIPE, text=True)
    jobs.wait_for(lambda: (tmp_path / "0.up").exists() and (tmp_path / "1.up").exists())
    pid = jobs.workers(p.pid)[1]
    os.kill(pid, signal.SIGSTOP)
    jobs.wait_for(lambda: launches.state(pid)[1] == "T")
    p.terminate()
    _, err = p.communicate(timeout=60)
    assert p.returncode == 1
    assert (tmp_path / "1.told").exists() and "had ended in time" not in err


@pytest.mark.skipif(not cgroups.can("freezer"), reason="needs the freezer of cgroup v1")
def test_rank_that_cannot_be_killed(tmp_path):
    """SIGKILL stays pending as with a process that sits in a driver. crun names it soon, and a process that it started, and ends all the same."""
    with open(tmp_path / "err", "w") as err:  # no pipe: the worker that is left would hold it open
        p = launches.start(["--standalone", "--nproc-per-node=2", "--shutdown-timeout=1", "--max-restarts=5", "--no-python",
                            "sh", "-c", "sleep 300 & echo $! >loader.$RANK; wait"], stderr=err, cwd=tmp_path)
    stuck = jobs.wait_for(lambda: len(w := jobs.workers(p.pid)) == 2 and w[1])
    jobs.wait_for(lambda: (tmp_path / "loader.1").exists() and (tmp_path / "loader.1").read_text())
    loader = int((tmp_path / "loader.1").read_text())
    named = [f"process {stuck} (local rank 1) does not end on SIGKILL: state D, in ", f"process {loader} (sleep) does not end on SIGKILL: state D, in "]
    with cgroups.frozen(stuck, loader):
        os.kill(jobs.workers(p.pid)[0], signal.SIGKILL)
        began = time.monotonic()
        jobs.wait_for(lambda: all(text in (tmp_path / "err").read_text() for text in named), 60)
        assert 2 <= time.monotonic() - began < 6 and p.poll() is None  # the timeout, and a second
        assert p.wait(timeout=60) == 1 and launches.state(stuck)[1] == "D"
    err = (tmp_path / "err").read_text()
    assert [err.count(text) for text in named] == [4, 4], err  # 1, 3 and 7 s after SIGKILL, and at the end
    assert "not everything could be killed" in err and "will restart" not in err and "has been killed\n" not in err
    assert launches.wait_until_gone(p.tag, 30) == {}  # its SIGKILL was pending


def test_last_lines_that_nobody_has_seen(tmp_path):
    fails = "for i in 1 2 3 4 5 6; do echo line $i >&2; done; exit 1"
    for options, shown in ((("-r2",), True), (("-t2", "--local-ranks-filter=1"), True), (("-t2",), False), ((), False)):
        p = crun(*options, "--no-python", "sh", "-c", fails)
        last = [f"crun:   | line {i}" for i in (3, 4, 5, 6)]
        assert [line for line in said(p) if line.startswith("crun:   | ")] == (last if shown else []), options
        assert len(said(p)) <= 12


@pytest.mark.parametrize("options, code, named", [
    ((), "import no_such_module", True), (("-r2",), "import no_such_module", True), (("-r2",), "raise ValueError('x')", False),
    ((), "import sys; sys.exit(7)", False)])
def test_python_of_an_import_that_fails_is_named(tmp_path, options, code, named):
    (tmp_path / "script.py").write_text(code)
    p = crun(*options, tmp_path / "script.py", environment={"PYTHON_EXEC": sys.executable})
    line = f"crun: the Python of the workers is {sys.executable} (PYTHON_EXEC selects another one)"
    assert p.returncode == 1 and said(p).count(line) == named, p.stderr


def test_the_launcher_ends_within_the_grace_of_the_scheduler(tmp_path):
    """The launcher ends before the grace period of the scheduler does, after which the scheduler would kill it."""
    worker = f"trap '' TERM; touch {tmp_path}/up; while :; do sleep 0.1; done"
    p = launches.start(["--standalone", "--shutdown-timeout=300", "--no-python", "sh", "-c", worker], stderr=subprocess.PIPE, text=True,
                       environment={"CRUN_GRACE_SECONDS": "2"})
    jobs.wait_for((tmp_path / "up").exists)
    begin = time.monotonic()
    p.terminate()
    _, err = p.communicate(timeout=60)
    assert time.monotonic() - begin > 0.9 and "does not fit into CRUN_GRACE_SECONDS (2 s); 1 s are used" in err
    assert p.returncode == 1 and launches.living(p.tag) == {}


def test_slurm_configuration_is_read(tmp_path):
    (tmp_path / "slurm.conf").write_text("ClusterName=x\nInactiveLimit=0 KillWait=10\n")
    p = crun("--shutdown-timeout=9", "--no-python", "true",
             environment={"SLURM_JOB_ID": "1", "SLURM_CONF": str(tmp_path / "slurm.conf")})
    jobs.assert_one_sentence(p, 0, "9 s does not fit into KillWait of Slurm (10 s); 7 s are used")


def test_line_prefix_with_host():
    p = crun("--nproc-per-node=2", "-t1", "--role=trainer", "--line-prefix=host", "--no-python", "echo", "x")
    assert sorted(p.stdout.splitlines()) == [f"[trainer {rank}@{os.uname().nodename}]: x" for rank in (0, 1)]


def test_worker_opens_the_store_itself(tmp_path):
    """The port is kept free: whoever allows reuse of addresses can listen there, nobody else can be given it."""
    code = """
import os, socket
port = int(os.environ["MASTER_PORT"])
try:
    socket.socket().bind(("", port))
    print("free")
except OSError:
    print("kept")
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((os.environ["MASTER_ADDR"], port))
s.listen()
print("open", os.environ["TORCHELASTIC_USE_AGENT_STORE"])
"""
    p = crun("--no-python", sys.executable, "-c", code, environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
    assert p.stdout.split() == ["kept", "open", "False"], p.stderr


def test_start_that_fails_is_a_failure_for_everybody():
    """There is no worker's code to pass on, and still it is not success."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for options in ((), ("--exit-code=worker",)):
            p = jobs.run([jobs.crun(), *options, f"--master-port={port}", "--no-python", "true"], timeout=60)
            jobs.assert_one_sentence(p, 1, "cannot open the worker store", str(port))


def test_worker_in_c_records_its_error(tmp_path):
    """train has no data: its reason is in error.json, and with it in the table and in torchrun's field."""
    p = crun("--nproc-per-node=2", f"--log-dir={tmp_path}/logs", jobs.train(), "mnist", "--data", tmp_path / "nowhere")
    assert p.returncode == 1
    files = list((tmp_path / "logs").rglob("error.json"))
    assert len(files) == 1, p.stderr  # the ranks agree on who says it
    recorded = json.loads(files[0].read_text())["message"]
    assert "nowhere" in recorded["message"] and abs(int(recorded["extraInfo"]["timestamp"]) - time.time()) < 120
    assert f"traceback : {recorded['message']}" in p.stderr and f"error_file: {files[0]}" in p.stderr


SLOW = "trap 'echo SAVING; sleep 3; echo SAVED; exit 0' TERM; touch up.$RANK; while :; do sleep 0.05; done"


@pytest.mark.parametrize("how", ["signal", "failure"])
def test_stop_is_announced_before_the_last_worker_has_ended(tmp_path, how):
    """A user who sees nothing presses Ctrl-C again, which kills the checkpoint that is being written."""
    fails = "[ $RANK = 1 ] && { while [ ! -e up.0 ]; do sleep 0.02; done; exit 3; }; " if how == "failure" else ""
    with nodes_lib.Nodes(tmp_path) as nodes:
        p = nodes.crun("--standalone", "--nproc-per-node=2", "--no-python", "sh", "-c", f"cd {tmp_path}; {fails}{SLOW}")
        jobs.wait_for((tmp_path / "up.0").exists)
        if how == "signal":
            jobs.wait_for((tmp_path / "up.1").exists)
            p.signal(signal.SIGTERM)
        p.wait_for("SAVING")
        p.wait_for("crun: SIGTERM: the workers have 30 s to end; a second signal kills them\n" if how == "signal"
                   else "crun: rank 1 failed (exit code 3); stopping the other worker, up to 30 s\n")
        assert "SAVED" not in p.text()
        assert p.wait(60) == 1 and "SAVED" in p.text()


# ---------------------------------------------------------------- the error file of crun itself


def ending(tmp_path, *args, signal_when=None):
    """(exit code, content of crun's own TORCHELASTIC_ERROR_FILE or None)"""
    file = tmp_path / "reply.json"
    p = launches.start(list(args), {"TORCHELASTIC_ERROR_FILE": str(file)}, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    if signal_when:
        jobs.wait_for(lambda: signal_when(tmp_path))
        p.send_signal(signal.SIGTERM)
    err = p.communicate(timeout=60)[1]
    text = file.read_text() if file.exists() else None
    assert text is None or text.endswith("}"), (args, text, err)
    content = json.loads(text)["message"] if text else None
    assert content is None or (set(content) == {"message", "extraInfo"} and content["extraInfo"]["py_callstack"]
                               and abs(int(content["extraInfo"]["timestamp"]) - time.time()) < 60), content
    return p.returncode, content and content["message"].replace(f"Process {p.pid}", "Process N"), err


def is_up(tmp_path):
    return (tmp_path / "up").exists()


@pytest.mark.parametrize("worker", ["touch up; sleep 60", "trap 'exit 0' TERM; touch up; while :; do sleep 0.05; done"])
def test_signal_is_in_the_error_file_of_crun(tmp_path, worker):
    """As torchrun writes it, also when the workers end well."""
    code, message, err = ending(tmp_path, "--standalone", "--no-python", "sh", "-c", worker, signal_when=is_up)
    assert (code, message) == (1, "SignalException: Process N got signal: 15"), err


def test_failure_to_start_is_in_the_error_file_of_crun(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cases = {(f"--master-port={port}", "--no-python", "true"): f"{port}: Address already in use",
                 ("--nnodes=2", f"--master-port={port}", "--no-python", "true"): f"port {port}: Address already in use",
                 ("--nnodes=2", "--node-rank=1", "--master-port=1", "--rdzv-conf=timeout=1", "true.py"): "true.py: No such file",
                 ("--nnodes=2", "--node-rank=1", "--master-port=1", "--rdzv-conf=timeout=1", "--no-python", "true"): "node 0 could not be reached",
                 ("--nnodes=0", "x"): "min_nodes must be > 0", ("missing.py",): "missing.py: No such file",
                 ("--standalone", "--no-python", "./bad"): "bad: No such file"}
        (tmp_path / "bad").write_text("#!/no/such/interpreter\n")
        (tmp_path / "bad").chmod(0o755)
        for args, words in cases.items():
            code, message, err = ending(tmp_path, *args)
            assert code == 1 and message and words in message and "crun: " not in message, (args, message, err)


def test_no_error_file_of_crun_for_a_worker_without_one(tmp_path):
    """Nor after success; the file of a worker is copied."""
    assert ending(tmp_path, "--standalone", "--no-python", "true")[:2] == (0, None)
    assert ending(tmp_path, "--standalone", "--no-python", "sh", "-c", "exit 3")[:2] == (1, None)
    assert ending(tmp_path, "--standalone", "--nosuchoption", "x")[:2] == (2, None)
