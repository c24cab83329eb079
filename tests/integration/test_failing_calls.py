"""One system call of crun or crund fails: a sample of `tests/soak syscalls`, drawn anew each time; and of a far end."""

import errno
import os
import platform
import random

import pytest

import host_channel
import jobs
import launches
import syscall_failures
from host_channel import DATA, END, STDOUT, Channel, frame


@pytest.mark.skipif(platform.machine() != "x86_64", reason="tests/fakes/failing_call.c reads the stack of x86-64")
def test_failing_calls():
    p = jobs.run_soak("syscall_failures.py", "--sample", "14", "--at-once", "1")
    print(p.stdout)
    assert p.returncode == 0, p.stdout + p.stderr


def far_end(folder, failure=()):
    """A short job by a far end, perhaps with a failing call: the calls that there were, and what is wrong with its end."""
    listed = folder / "calls"
    with Channel(prefix=[jobs.build_folder() / "tests/fakes/failing_call", listed, *failure, "--"]) as c:
        c.start(["--standalone", "--nproc-per-node=2", "--shutdown-timeout=2", "--no-python", "sh", "-c",
                 "echo out $RANK; [ $RANK = 1 ] || read x; sleep 0.2"], secret=host_channel.new_secret(), directory="/tmp")
        c.wait(lambda c: c.stdin_window or c.notes, 30)
        c.send(frame(DATA, b"x\n") + frame(END) if c.stdin_window else b"")
        code = c.rest(30)
        has_all = c.result == (1, 0) and [c.output(STDOUT, i) for i in range(2)] == [b"out 0\n", b"out 1\n"]
        wrong = [] if has_all or code > 0 else [f"code {code}"]
        wrong += [] if code == 0 or c.notes or c.output(host_channel.AGENT_ERR) or c.process.stderr.read() else ["no reason"]
        wrong += [f"left: {left}" for left in [launches.wait_until_gone(c.tag, 10)] if left]
        assert jobs.wait_until(listed.exists, 5)
        return listed.read_text().splitlines(), wrong


@pytest.mark.skipif(platform.machine() != "x86_64", reason="tests/fakes/failing_call.c reads the stack of x86-64")
def test_failing_calls_of_a_far_end(tmp_path):
    calls, wrong = far_end(tmp_path)
    assert not wrong
    cases = [(role, call, site, n, error) for role, call, site, count in (line.split() for line in calls) if role == "main"
             for error in syscall_failures.ERRORS.get(syscall_failures.name_of(call), "").split() for n in {1, int(count)}
             if syscall_failures.name_of(call) not in ("epoll_ctl", "pipe2")]  # libuv aborts, see LIBUV_ABORTS
    seed = int(os.environ.get("CRUN_SEED", 0)) or random.randrange(1 << 30)
    print("seed", seed)
    for i, (*case, error) in enumerate(random.Random(seed).sample(cases, 12)):
        (tmp_path / str(i)).mkdir()
        wrong = far_end(tmp_path / str(i), (*case, getattr(errno, error)))[1]
        assert not wrong, (case, error, wrong)
