"""Signals to crun at every moment: early, twice, while it waits for other nodes, passed on, or not handled."""

import array
import ctypes
import os
import pty
import re
import resource
import signal
import socket
import subprocess
import sys
import time

import pytest

import jobs
import launches
import nodes as lib
from system_calls import refuse_system_call

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def meeting(kind, port):
    """Options of one node of a job that meets in this way; the second node never comes."""
    return {"alone": ["--standalone"],
            "static": ["--nnodes=2", "--node-rank=0", "--master-addr=127.0.0.1", f"--master-port={port}"],
            "rounds": ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=early"],
            }[kind]


def write_worker(tmp_path, text, name="worker.sh"):
    worker = tmp_path / name
    worker.write_text("#!/bin/bash\n" + text)
    worker.chmod(0o755)
    return str(worker)


def start_worker(tmp_path, text, *options, name="worker.sh", **more):
    return launches.start([*options, write_worker(tmp_path, text, name)], cwd=tmp_path, stderr=subprocess.PIPE, text=True, **more)


# ---- early signals

@pytest.mark.parametrize("kind", ["alone", "static", "rounds"])
@pytest.mark.parametrize("number", STOPPING)
def test_signal_that_is_pending_at_the_start(kind, number):
    """Blocked and sent to itself before it executes crun: crun reads it before it has begun to meet other nodes."""
    def pending():
        signal.pthread_sigmask(signal.SIG_BLOCK, [number])
        os.kill(os.getpid(), number)

    p = subprocess.run([jobs.crun(), *meeting(kind, lib.free_port()), "--no-python", "sleep", "60"], preexec_fn=pending,
                       stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert p.returncode == 1, (p.returncode, p.stderr)
    assert f"stopped by {number.name}" in p.stderr


@pytest.mark.parametrize("kind", ["alone", "static", "rounds"])
def test_signals_at_many_early_moments(kind):
    """Each of four signals 0 to 30 ms after the start. SIGUSR1 ends nothing: SIGTERM follows."""
    for i in range(24):
        number = (*STOPPING, signal.SIGUSR1)[i % 4]
        p = launches.start([*meeting(kind, lib.free_port()), "--no-python", "sleep", "60"], stderr=subprocess.PIPE, text=True)
        time.sleep(0.03 * (i // 4) / 6)
        jobs.kill(p.pid, number)
        if number == signal.SIGUSR1:
            time.sleep(0.05)
            jobs.kill(p.pid, signal.SIGTERM)
        _, err = p.communicate(timeout=60)
        # Before main() has blocked signals they have their default action.
        assert p.returncode in (1, -number), (i, number, p.returncode, err)
        assert launches.wait_until_gone(p.tag, 10) == {}


def test_signals_at_random_moments():
    """The short form of `tests/soak signals-moments`: of start, restart and end, in all three ways of meeting."""
    p = jobs.run_soak("signal_moments.py", "--rounds", "1")
    assert p.returncode == 0, p.stdout + p.stderr


# ---- the second signal

SAVES = ("trap 'sleep 0.5; touch saved.$RANK; exit 0' TERM HUP INT\ntouch up.$RANK\n"
         "while :; do sleep 0.02; done\n")


def wait_until_up(tmp_path, n):
    jobs.wait_for(lambda: all((tmp_path / f"up.{rank}").exists() for rank in range(n)))


@pytest.mark.parametrize("second", [signal.SIGHUP, signal.SIGTERM])
def test_two_signals_in_a_row_are_one_request(tmp_path, second):
    """What systemd sends with SendSIGHUP=yes: the workers can still save."""
    p = start_worker(tmp_path, SAVES, "--standalone", "--nproc-per-node=2")
    wait_until_up(tmp_path, 2)
    p.send_signal(signal.SIGTERM)
    time.sleep(0.05)
    p.send_signal(second)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 1
    assert (tmp_path / "saved.0").exists() and (tmp_path / "saved.1").exists(), err
    assert "SIGTERM: the workers have 30 s to end; a second signal kills them" in err


# ---- signals that are passed on

COUNTS = ("n=0\ntrap 'n=$((n + 1)); echo $n > usr.$RANK' {name}\ntrap 'exit 0' TERM\ntouch up.$RANK\n"
          "sleep 1000 & child=$!; echo $child > new.$RANK; mv new.$RANK child.$RANK\nwhile :; do sleep 0.02; done\n")


@pytest.mark.parametrize("name", ["USR1", "USR2"])
def test_user_signals_are_passed_to_the_workers_alone(tmp_path, name):
    p = start_worker(tmp_path, COUNTS.replace("{name}", name), "--standalone", "--nproc-per-node=2")
    jobs.wait_for(lambda: all((tmp_path / f"child.{rank}").exists() for rank in range(2)))
    p.send_signal(getattr(signal, "SIG" + name))
    jobs.wait_for(lambda: all((tmp_path / f"usr.{rank}").exists() for rank in range(2)))
    time.sleep(0.2)
    assert p.poll() is None
    for rank in range(2):
        assert launches.state(int((tmp_path / f"child.{rank}").read_text()))[1] == "S"
    p.terminate()
    _, err = p.communicate(timeout=60)
    assert p.returncode == 1 and "stopped by SIGTERM" in err


def test_orders_to_a_guardian_that_does_not_read(tmp_path):
    """The link to the guardian holds a few hundred orders. Those behind them wait, and none is lost."""
    p = start_worker(tmp_path, "trap : USR1\ntrap 'touch saved; exit 0' TERM\ntouch up.0\nwhile :; do sleep 0.05; done\n",
                     "--standalone", "--shutdown-timeout=20")
    wait_until_up(tmp_path, 1)
    guardian = launches.guardian(p.pid)
    launches.trace(guardian)
    for _ in range(1200):
        p.send_signal(signal.SIGUSR1)
        time.sleep(0.001)
    p.terminate()
    time.sleep(0.2)
    launches.untrace(guardian)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 1 and (tmp_path / "saved").exists(), err


def test_ignored_user_signal_stays_ignored(tmp_path):
    p = start_worker(tmp_path, "touch up.0\nuntil [ -e end ]; do sleep 0.02; done\n", "--standalone",
                     preexec_fn=lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN))
    wait_until_up(tmp_path, 1)
    p.send_signal(signal.SIGUSR1)
    time.sleep(0.2)
    (tmp_path / "end").touch()
    p.communicate(timeout=60)
    assert p.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGALRM, signal.SIGXCPU, signal.SIGRTMIN + 1])
def test_unhandled_signal_gives_the_workers_their_grace(tmp_path, number):
    p = start_worker(tmp_path, SAVES, "--standalone", "--nproc-per-node=2")
    wait_until_up(tmp_path, 2)
    p.send_signal(number)
    p.communicate(timeout=60)
    assert p.returncode == -number
    assert launches.wait_until_gone(p.tag, 10) == {}
    assert (tmp_path / "saved.0").exists() and (tmp_path / "saved.1").exists()


def test_unhandled_signal_ahead_of_what_the_guardian_has_reported(tmp_path):
    """A link that is closed with records unread is reset on the other side, and that is read ahead of the last order."""
    p = start_worker(tmp_path, SAVES, "--standalone", "--nproc-per-node=2")
    wait_until_up(tmp_path, 2)
    workers = jobs.wait_for(lambda: len(w := jobs.workers_named(p.pid, "worker.sh")) == 2 and w)
    guardian = launches.guardian(p.pid)
    os.kill(p.pid, signal.SIGSTOP)
    jobs.wait_for(lambda: launches.state(p.pid)[1] == "T")
    jobs.kill(workers[1])
    jobs.wait_for(lambda: launches.state(workers[1]) is None)  # the guardian has reaped and reported it
    time.sleep(0.1)
    launches.trace(guardian)  # it reads nothing until crun has ended
    p.send_signal(signal.SIGRTMIN + 1)
    p.send_signal(signal.SIGCONT)
    assert p.wait(timeout=60) == -(signal.SIGRTMIN + 1)
    launches.untrace(guardian)
    p.communicate(timeout=60)
    assert launches.wait_until_gone(p.tag, 10) == {}
    assert (tmp_path / "saved.0").exists()


def test_unhandled_signal_kills_after_the_grace(tmp_path):
    p = start_worker(tmp_path, "trap '' TERM\ntouch up.$RANK\nwhile :; do sleep 0.02; done\n", "--standalone",
                     "--shutdown-timeout=1")
    wait_until_up(tmp_path, 1)
    begin = time.monotonic()
    p.send_signal(signal.SIGALRM)
    p.communicate(timeout=60)
    assert launches.wait_until_gone(p.tag, 20) == {}
    assert time.monotonic() - begin > 0.9


def test_killed_crun_gives_no_grace(tmp_path):
    p = start_worker(tmp_path, SAVES, "--standalone")
    wait_until_up(tmp_path, 1)
    p.kill()
    p.communicate(timeout=60)
    assert launches.wait_until_gone(p.tag, 10) == {}
    assert not (tmp_path / "saved.0").exists()


def test_signal_of_a_worker_to_its_parent(tmp_path):
    """A worker knows the launcher as its parent process: under torchrun it ends the job by this."""
    p = start_worker(tmp_path, "[ $RANK = 0 ] && sleep 0.2 && kill -TERM $PPID\nsleep 60\n", "--standalone",
                     "--nproc-per-node=2")
    _, err = p.communicate(timeout=60)
    assert p.returncode == 1 and "stopped by SIGTERM" in err, err
    assert re.search(r"stopped by SIGTERM from process \d+", err), err


def test_file_of_crun_at_the_limit_of_file_size(tmp_path):
    """The kernel sends SIGXFSZ to crun, which writes the trace; the job goes on, and the file has what fits."""
    p = start_worker(tmp_path, "echo x >> starts\nexit 3\n", "--standalone", "--max-restarts=9", "--restart-pause=0",
                     f"--debug={tmp_path}/trace", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048)))
    _, err = p.communicate(timeout=60)
    assert p.returncode == 1 and len((tmp_path / "starts").read_text().split()) == 10, (p.returncode, err)
    assert 1900 < (tmp_path / "trace").stat().st_size <= 2048


@pytest.mark.parametrize("n, works", [(1, True), (3, False)])
def test_large_environment_under_a_limit_of_file_size(tmp_path, n, works):
    """Memory files count for the limit as well: the start of a worker needs none up to the size of a record."""
    p = start_worker(tmp_path, "echo ${#BIG0}\n", "--standalone", environment={f"BIG{i}": "x" * 100000 for i in range(n)},
                     stdout=subprocess.PIPE, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)))
    out, err = p.communicate(timeout=60)
    assert (p.returncode, out.strip()) == ((0, "100000") if works else (1, "")), (p.returncode, out, err)
    assert works or "File too large; the environment of a worker is larger than the limit of file size (ulimit -f)" in err


def all_stopped(pids):
    return all(launches.state(pid)[1] == "T" for pid in pids)


SUSPENDED = "touch up.$RANK\nuntil [ -e end ]; do read -t 0.02 < /dev/zero; done\nexit 0\n"


def in_group(*args, **more):
    """As a shell with job control starts a job: in a process group of its own, which the shell can continue."""
    return start_worker(*args, preexec_fn=lambda: os.setpgid(0, 0), **more)


@pytest.mark.parametrize("head", [[], ["nohup"], ["sh", "-c", '"$@"; exit $?', "sh"]], ids=["alone", "nohup", "script"])
def test_suspended_job(tmp_path, head):
    """Ctrl-Z reaches crun alone, as workers have sessions of their own; they stop with it, and go on with it."""
    launcher = [*head, jobs.crun(), "--standalone", "--nproc-per-node=2", write_worker(tmp_path, SUSPENDED)]
    p = subprocess.Popen(launcher, cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=lambda: os.setpgid(0, 0))
    wait_until_up(tmp_path, 2)
    crun = jobs.children(p.pid)[0] if head[:1] == ["sh"] else p.pid
    workers = jobs.wait_for(lambda: len(w := jobs.workers_named(crun, "worker.sh")) == 2 and w)
    os.killpg(p.pid, signal.SIGTSTP)
    jobs.wait_for(lambda: all_stopped([crun, *workers.values()]), 20)
    (tmp_path / "end").touch()
    time.sleep(0.3)
    assert all_stopped([crun, *workers.values()])
    os.killpg(p.pid, signal.SIGCONT)
    p.communicate(timeout=60)
    assert p.returncode == 0


def goes_on(tmp_path, crun, send):
    """Whether Ctrl-Z has no effect: crun runs, and the workers at most pause for a moment."""
    wait_until_up(tmp_path, 1)
    worker = jobs.wait_for(lambda: list(jobs.workers_named(crun(), "worker.sh").values()))[0]
    for _ in range(3):
        send()
        time.sleep(0.1)
    states = [launches.state(pid)[1] for pid in (crun(), worker)]
    (tmp_path / "end").touch()
    return "T" not in states


@pytest.mark.parametrize("head", [[], ["sh", "-c", '"$@"; exit $?', "sh"], ["setsid", "-w"], ["unshare", "--pid", "--fork", "--mount-proc"],
                                  ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", '"$@"; exit $?', "sh"]],
                         ids=["ssh", "script", "setsid", "process1", "namespace"])
def test_suspended_where_no_shell_continues_it(tmp_path, head):
    """The only job of a terminal, as with ssh -t, docker exec -it and tmux, or process 1: SIGTSTP is ignored, as the kernel does.
    In a namespace whose session is outside, crun learns that by the signal alone, and the workers are continued."""
    if head[:1] == ["unshare"] and os.getuid() != 0:
        pytest.skip("a PID namespace needs root")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execvp((head or [jobs.crun()])[0], [*head, jobs.crun(), "--standalone", write_worker(tmp_path, SUSPENDED)])

    def crun():
        return next(p for p in [pid, *jobs.descendants(pid)] if launches.state(p)[0] == "crun")

    def send():
        os.kill(crun(), signal.SIGTSTP) if head[:1] == ["setsid"] else os.write(terminal, b"\x1a")

    went_on = jobs.wait_for(lambda: (tmp_path / "up.0").exists()) and goes_on(tmp_path, crun, send)
    if not went_on:
        os.kill(crun(), signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert went_on and status == 0


def test_suspended_job_can_be_stopped(tmp_path):
    p = in_group(tmp_path, SAVES, "--standalone")
    wait_until_up(tmp_path, 1)
    p.send_signal(signal.SIGTSTP)
    jobs.wait_for(lambda: launches.state(p.pid)[1] == "T", 20)
    p.send_signal(signal.SIGTERM)  # as a shell's kill %1
    p.send_signal(signal.SIGCONT)
    p.communicate(timeout=60)
    assert p.returncode == 1 and (tmp_path / "saved.0").exists()


# ---- while it waits for other nodes

def test_signal_while_waiting_for_the_nodes_of_another_job(tmp_path):
    """The node that serves the rendezvous is done and stays for a second job, for 10 s: a signal ends that."""
    port = lib.free_port()
    common = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--nproc-per-node=1"]
    host = launches.start(["--nnodes=1:2", "--rdzv-id=one", "--rdzv-conf=last_call_timeout=1,join_timeout=60", *common,
                           "--no-python", "sh", "-c", f"until [ -e {tmp_path}/end ]; do sleep 0.02; done"],
                          stderr=subprocess.PIPE, text=True)
    jobs.wait_for(lambda: lib.can_connect(port))  # it serves the rendezvous, not the guest
    guest_log = tmp_path / "guest"
    with guest_log.open("w") as err:
        guest = launches.start(["--nnodes=2", "--rdzv-id=two", "--rdzv-conf=join_timeout=60", *common, "--no-python", "true"],
                               stderr=err)
    try:
        jobs.wait_for(lambda: jobs.workers_named(host.pid, "sh"))
        jobs.wait_for(lambda: "1/2 nodes" in guest_log.read_text())  # the guest has joined
        (tmp_path / "end").touch()
        jobs.wait_for(lambda: not jobs.children(host.pid))
        time.sleep(0.5)
        assert host.poll() is None  # it waits for the guest
        begin = time.monotonic()
        host.send_signal(signal.SIGTERM)
        host.communicate(timeout=60)
        assert time.monotonic() - begin < 4 and host.returncode == 0
    finally:
        guest.kill()
        guest.wait()


# ---- starts that fail

@pytest.mark.parametrize("error", [38, 1], ids=["ENOSYS", "EPERM"])
def test_without_close_range(tmp_path, error):
    """Workers start, have their seven descriptors at most, and the guardian has none of crun's."""
    worker = "touch up.0\nuntil [ -e end ]; do sleep 0.02; done\n"
    leaked = [os.open("/dev/null", os.O_RDONLY) for _ in range(40)]
    for fd in leaked:
        os.set_inheritable(fd, True)
    p = start_worker(tmp_path, worker, "--standalone", preexec_fn=lambda: refuse_system_call(436, error), close_fds=False)
    for fd in leaked:
        os.close(fd)
    jobs.wait_for(lambda: (tmp_path / "up.0").exists() or p.poll() is not None)
    assert p.poll() is None, p.stderr.read()
    pid = jobs.wait_for(lambda: jobs.workers_named(p.pid, "worker.sh").get(0))
    assert set(map(int, os.listdir(f"/proc/{pid}/fd"))) <= {0, 1, 2, 3, 4, 5, 7, 255}  # 255: the shell's own script
    p.kill()  # the guardian would not see this if it had crun's end of the link
    p.communicate()
    assert launches.wait_until_gone(p.tag, 10) == {}


def test_old_kernel_is_named():
    """uname(2) reports 2.6.x with the personality UNAME26."""
    p = subprocess.run([jobs.crun(), "--standalone", "--no-python", "true"], capture_output=True, text=True, timeout=60,
                       preexec_fn=lambda: ctypes.CDLL(None).personality(0x0020000))
    jobs.assert_one_sentence(p, 1, "Linux 3.17 or newer is needed, and this is 2.6.")


def test_start_failure_that_passes_is_restarted(tmp_path):
    """A program that is open for writing is ETXTBSY, as while it is being copied to the node."""
    program = tmp_path / "program"
    program.write_bytes(open("/bin/true", "rb").read())
    program.chmod(0o755)
    with open(program, "ab"):
        p = launches.start(["--standalone", "--max-restarts=3", "--no-python", program], stderr=subprocess.PIPE, text=True)
        time.sleep(0.5)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 0, err
    assert "Text file busy" in err and "attempts left" in err


@pytest.mark.parametrize("options", [[], ["--warm"]], ids=["cold", "warm"])
@pytest.mark.parametrize("call, at", [("_Fork", 1), ("socketpair", 2), ("socketpair", 3), ("socketpair", 4), ("open", 1), ("open", 3)])
def test_lack_at_a_start_is_a_restart(tmp_path, call, at, options):
    """Whichever part of crun lacks something: the guardian's fork, sockets for workers, their files. The first pair of sockets, for
    requests about blocks, is none of them."""
    before_start = 2 if call == "socketpair" else 1
    script = tmp_path / "script.py"
    script.write_text(f"import os, sys\nprint(os.environ['CRUN_GENERATION'])\nsys.exit(os.environ['CRUN_GENERATION'] == '0' and {at} > {before_start})")
    p = subprocess.run([jobs.crun(), "--standalone", "--max-restarts=2", "--restart-pause=0", "-t3", f"--log-dir={tmp_path}", *options, script],
                       capture_output=True, text=True, timeout=60,
                       env={**os.environ, **jobs.preload("scarce_machine", SCARCE=call, SCARCE_AT=at)})
    assert p.returncode == 0, p.stderr
    lack = "Resource temporarily unavailable" if call == "_Fork" else "Too many open files"
    if not options or call == "open":
        assert p.stderr.count(lack) == 1 and p.stderr.count("attempts left; will restart worker group") >= 1, p.stderr


def test_lack_at_a_start_that_stays(tmp_path):
    """The start comes again after a pause, as often as --max-restarts allows."""
    p = subprocess.run([jobs.crun(), "--standalone", "--max-restarts=1", "--no-python", "true"], capture_output=True, text=True, timeout=60,
                       env={**os.environ, "OMP_NUM_THREADS": "1", **jobs.preload("scarce_machine", SCARCE="_Fork", SCARCE_AT=0)})
    assert p.returncode == 1, p.stderr
    lines = [line[6:] for line in p.stderr.splitlines()]
    assert lines.count("the workers could not be started; the next start is in 1 s (--restart-pause)") == 1, p.stderr
    assert lines[-1] == "the only restart is used; the job has failed", p.stderr


@pytest.mark.parametrize("limit, workers", [(64, 60), (70, 64), (71, 64), (64, 20), (128, 60)])
def test_few_descriptors_name_the_remedy(limit, workers):
    """Wherever in a start the hard limit is met."""
    p = subprocess.run([jobs.crun(), "--standalone", f"--nproc-per-node={workers}", "--no-python", "true"], capture_output=True, text=True,
                       timeout=60, env={**os.environ, "OMP_NUM_THREADS": "1"},
                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
    jobs.assert_one_sentence(p, 1, "Too many open files; raise the limit of open files (ulimit -n)")


@pytest.mark.skipif(os.getuid() != 0, reason="root has no such limit, and becomes another user")
@pytest.mark.parametrize("n_held, works", [(0, True), (130, True), (200, False)])
def test_descriptors_on_their_way_are_limited(n_held, works):
    """Those of a user in all sockets, to as many as a process may open. A job waits for its own orders; others' are an error."""
    limit, user, (a, b) = 150, 54321, socket.socketpair()

    def become_user():
        os.setresuid(user, user, user)
        for _ in range(n_held):
            a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [a.fileno()]))])
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    with a, b:
        p = subprocess.run([jobs.crun(), "--standalone", "--nproc-per-node=30", "--no-python", "true"], cwd="/", capture_output=True, text=True,
                           timeout=60, preexec_fn=become_user, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert p.returncode == (not works) and ("Too many references" in p.stderr) == (not works), p.stderr


@pytest.mark.parametrize("options", [[], ["--warm"]], ids=["cold", "warm"])
def test_guardian_that_does_not_end(tmp_path, options):
    """In state D, as at a network disk that is gone: crun's end waits some seconds for it."""
    script = tmp_path / "script.py"
    script.write_text("print('ran')")
    p = subprocess.run([jobs.crun(), "--standalone", *options, script], capture_output=True, text=True, timeout=20,
                       env={**os.environ, "OMP_NUM_THREADS": "1", **jobs.preload("scarce_machine", SCARCE="waitpid", SCARCE_AT=0)})
    assert p.returncode == 0 and p.stdout == "ran\n", p.stderr
    assert re.search(r"^crun: the guardian \(process \d+\) does not end on SIGKILL; crun ends without it$", p.stderr, re.MULTILINE), p.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="a PID namespace needs root")
@pytest.mark.parametrize("number", [signal.SIGPWR, signal.SIGXCPU, signal.SIGRTMIN + 3])
def test_signals_that_process_1_does_not_take(tmp_path, number):
    """docker kill -s, STOPSIGNAL of images with systemd: the kernel ignores them for process 1, and its workers go on."""
    p = subprocess.Popen(["unshare", "--pid", "--fork", "--mount-proc", jobs.crun(), "--standalone", write_worker(tmp_path, SUSPENDED)],
                         cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_until_up(tmp_path, 1)
    os.kill(jobs.children(p.pid)[0], number)
    time.sleep(0.3)
    (tmp_path / "end").touch()
    _, err = p.communicate(timeout=60)
    assert p.returncode == 0, err


@pytest.mark.parametrize("is_killed", [False, True])
def test_guardian_between_two_generations(tmp_path, is_killed):
    """It stays for the job; after its end the next generation has another one."""
    p = start_worker(tmp_path, "echo $PPID >> parents\n[ $TORCHELASTIC_RESTART_COUNT = 2 ]\n", "--standalone", "--max-restarts=2")
    err = ""
    while "the next start is in 1 s" not in err:  # the generation has ended for crun, too
        line = p.stderr.readline()
        assert line, err
        err += line
    guardian = int((tmp_path / "parents").read_text().split()[0])
    if is_killed:
        os.kill(guardian, signal.SIGKILL)
    err += p.stderr.read()
    p.wait(timeout=60)
    parents = [int(line) for line in (tmp_path / "parents").read_text().split()]
    assert p.returncode == 0 and parents[:2] == [guardian] * 2 and (parents[2] == guardian) != is_killed, (parents, guardian, err)
    assert "the guardian" not in err and launches.wait_until_gone(p.tag, 30) == {}


@pytest.mark.parametrize("options", [[], ["--warm"]], ids=["cold", "warm"])
def test_job_that_ends_between_two_generations(tmp_path, options):
    """No generation has the guardian, while the node is checked: crun ends it nevertheless, and waits for one that is late."""
    script = tmp_path / "script.py"
    script.write_text(f"open('{tmp_path}/failed', 'w')\nraise SystemExit(1)\n")
    p = launches.start(["--standalone", "--max-restarts=1", "--restart-pause=0", f"--health-check=[ ! -e {tmp_path}/failed ] || exec sleep 60",
                        *options, script], jobs.preload("late_guardian", LATE_GUARDIAN_MS=300), stderr=subprocess.PIPE, text=True)
    jobs.wait_for(lambda: "sleep" in launches.living(p.tag).values())
    p.terminate()
    p.wait(timeout=60)
    assert launches.living(p.tag) == {}
    assert p.stderr.read().count("stopped by SIGTERM") == 1


def test_pause_between_restarts(tmp_path):
    """The first restart at once, the second after 1 s, the third after 2 s."""
    begin = time.monotonic()
    p = start_worker(tmp_path, "date +%s.%N >> starts\nexit 3\n", "--standalone", "--max-restarts=3")
    _, err = p.communicate(timeout=60)
    starts = [float(line) for line in (tmp_path / "starts").read_text().split()]
    pauses = [b - a for a, b in zip(starts, starts[1:])]
    assert p.returncode == 1 and len(starts) == 4, err
    assert pauses[1] >= 1 and pauses[2] >= 2, pauses
    assert "the next start is in 2 s (--restart-pause)" in err
    p = start_worker(tmp_path, "exit 3\n", "--standalone", "--max-restarts=20", "--restart-pause=0")
    begin = time.monotonic()
    p.communicate(timeout=60)
    assert time.monotonic() - begin < 20


def test_no_processor_is_used_in_a_pause(tmp_path):
    """The link to the guardian has ended by then, and an ended socket is readable for ever."""
    p = start_worker(tmp_path, "exit 3\n", "--standalone", "--max-restarts=3")
    p.stderr.read()
    _, status, usage = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    assert p.returncode == 1 and usage.ru_utime + usage.ru_stime < 0.3, usage


def test_signal_ends_a_pause(tmp_path):
    p = start_worker(tmp_path, "echo x >> starts\nexit 3\n", "--standalone", "--max-restarts=9", "--restart-pause=3600")
    jobs.wait_for(lambda: (tmp_path / "starts").exists() and len((tmp_path / "starts").read_text().split()) == 5)
    time.sleep(0.2)  # in the pause of 8 s
    begin = time.monotonic()
    p.terminate()
    p.communicate(timeout=60)
    assert p.returncode == 1 and time.monotonic() - begin < 5


# ---- --debug

def trace_of(lines):
    """(milliseconds, machine, kind, name, fields)"""
    found = []
    for line in lines:
        m = re.fullmatch(r"crun: debug: (\d+\.\d{3}) (group|session) (event|action) ([a-z-]+)((?: .*)?)", line)
        if m:
            found.append((float(m[1]), m[2], m[3], m[4], m[5]))
    return found


@pytest.mark.parametrize("to_file", [False, True])
def test_debug_shows_how_a_killed_worker_ends_the_job(tmp_path, to_file):
    option = f"--debug={tmp_path}/trace" if to_file else "--debug"
    p = start_worker(tmp_path, "touch up.$RANK\nsleep 60\n", "--standalone", "--nproc-per-node=2", option)
    wait_until_up(tmp_path, 2)
    workers = jobs.wait_for(lambda: len(w := jobs.workers(p.pid)) == 2 and w)
    os.kill(workers[1], signal.SIGKILL)
    _, err = p.communicate(timeout=60)
    text = (tmp_path / "trace").read_text() if to_file else err
    assert ("crun: debug: " in err) != to_file
    trace = trace_of(text.splitlines())
    assert len(trace) + text.count(" containment: ") == text.count("crun: debug: ") > 10
    assert text.count(" containment: ") == 1
    assert [line[0] for line in trace] == sorted(line[0] for line in trace)
    names = [(kind, name) for _, machine, kind, name, _ in trace if machine == "group"]
    at = next(i for i, line in enumerate(trace) if line[3] == "exited")
    assert "worker=1" in trace[at][4] and "value=9" in trace[at][4] and "state=running" in trace[at][4]
    assert names[at:at + 4] == [("event", "exited"), ("action", "notify-failed"), ("action", "signal"), ("action", "arm")]
    empty = names.index(("event", "empty"))
    assert names[empty + 1:] == [("action", "disarm"), ("action", "print-report"), ("action", "finish")]


def test_debug_of_a_session(tmp_path):
    port = lib.free_port()
    options = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=d", "--no-python"]
    both = [launches.start([f"--debug={tmp_path}/trace.{i}", *options, "true"], stderr=subprocess.PIPE, text=True)
            for i in range(2)]
    for p in both:
        p.communicate(timeout=60)
        assert p.returncode == 0
    for i in range(2):
        trace = trace_of((tmp_path / f"trace.{i}").read_text().splitlines())
        names = [(machine, kind, name) for _, machine, kind, name, _ in trace]
        expected = [("session", "action", "dial"), ("session", "event", "connected"), ("session", "action", "start"),
                    ("group", "event", "start"), ("group", "action", "spawn"), ("group", "action", "report-done"),
                    ("session", "event", "group-done"), ("session", "action", "end"), ("group", "event", "end"),
                    ("group", "action", "finish")]
        at = 0
        for step in expected:
            at = names.index(step, at)


def test_debug_file_that_cannot_be_opened():
    p = subprocess.run([jobs.crun(), "--debug=/nonexistent/trace", "--standalone", "--no-python", "true"],
                       capture_output=True, text=True, timeout=60)
    jobs.assert_one_sentence(p, 1, "--debug=/nonexistent/trace", "No such file")


# ---- the worker before its group

# Rank 0 takes 0.2 s to save; its helper in the same group, and one that has left the session, end by the signal. Each writes when.
SAVING = """
note() { echo "$1 $(date +%s%N)" >>order; }
(trap 'note helper; exit' TERM INT HUP; touch helper; while :; do sleep 0.02; done) &
setsid sh -c "trap 'echo orphan \\$(date +%s%N) >>order; exit' TERM INT HUP; touch orphan; while :; do sleep 0.02; done" &
disown
end() { note worker; [ "$DEAF" ] && return; sleep 0.2; note saved; exit 0; }
trap end TERM INT HUP
until [ -e helper ] && [ -e orphan ]; do sleep 0.01; done
touch up
[ "$FAILS" ] && [ $RANK = 1 ] && exit 3
while :; do sleep 0.02; done
"""


def order_of_ends(tmp_path, *options, ends_by="SIGTERM", **variables):
    """What was written, in order, with the seconds since the first: [(kind, seconds)]."""
    p = start_worker(tmp_path, SAVING, "--standalone", *options, environment=variables)
    if ends_by:
        jobs.wait_for((tmp_path / "up").exists)
        p.send_signal(getattr(signal, ends_by))
    err = p.communicate(timeout=60)[1]
    assert launches.wait_until_gone(p.tag, 20) == {}, err
    lines = sorted((int(at), kind) for kind, at in map(str.split, (tmp_path / "order").read_text().splitlines()))
    return [(kind, (at - lines[0][0]) / 1e9) for at, kind in lines]


@pytest.mark.parametrize("ends_by", ["SIGTERM", "SIGINT", "SIGHUP", "SIGALRM", None])
def test_worker_first(tmp_path, ends_by):
    """A signal that is passed on, one that ends crun itself, the failure of another worker."""
    more = {} if ends_by else {"FAILS": "1"}
    ends = order_of_ends(tmp_path, "--signal-order=worker-first", *([] if ends_by else ["--nproc-per-node=2"]), ends_by=ends_by, **more)
    kinds = [kind for kind, _ in ends]
    assert kinds.index("worker") < kinds.index("saved") < min(kinds.index("helper"), kinds.index("orphan")), ends


def test_group_at_once_by_default(tmp_path):
    ends = order_of_ends(tmp_path)
    kinds = [kind for kind, _ in ends]
    assert kinds.index("helper") < kinds.index("saved") and "worker" in kinds, ends


def test_group_of_a_worker_that_does_not_end(tmp_path):
    """At half of the timeout, and the worker itself again."""
    ends = order_of_ends(tmp_path, "--signal-order=worker-first", "--shutdown-timeout=2", DEAF="1")
    after = {kind: at for kind, at in ends}
    assert [kind for kind, _ in ends].count("worker") == 2 and 0.9 < after["helper"] < 1.9 and 0.9 < after["worker"], ends
