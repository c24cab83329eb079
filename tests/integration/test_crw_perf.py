"""crw-perf under crun and alone: what it prints, and what it says of wrong command lines."""

import json
import signal
import subprocess

import pytest

import jobs

COLLECTIVES = ("allreduce", "broadcast", "allgather", "gather", "reduce", "reducescatter", "scatter", "sendrecv",
               "pingpong", "barrier", "copy")
PERF = str(jobs.build_folder() / "worker-runtime" / "crw-perf")
QUICK = ("--iters", "3", "--warmup", "1")


def under_crun(n, *args):
    return jobs.run([jobs.crun(), "--standalone", f"--nproc-per-node={n}", PERF, *args], timeout=120)


def objects(p):
    assert p.returncode == 0, p.stderr
    return [json.loads(line) for line in p.stdout.splitlines()]


@pytest.mark.sanitize
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_is_right(collective):
    lines = objects(under_crun(3, collective, "--json", "--bytes", "4,1000,300K", *QUICK))
    assert len(lines) == (1 if collective == "barrier" else 3)
    for line in lines:
        assert line["collective"] == collective and line["ranks"] == 3
        assert line["checked"] == 0
        assert line["time_us"] > 0 and line["algbw"] >= 0 and line["busbw"] >= 0
    if collective == "allreduce":
        assert [line["bytes"] for line in lines] == [4, 1000, 307200]
        last = lines[-1]
        assert last["algbw"] == pytest.approx(307200 / last["time_us"] / 1e3, rel=1e-3)
        assert last["busbw"] == pytest.approx(last["algbw"] * 2 * 2 / 3, rel=1e-3)


def test_private_memory():
    for line in objects(under_crun(2, "all_reduce", "--json", "--memory", "private", "--bytes", "4,900904", *QUICK)):
        assert line["memory"] == "private" and line["checked"] == 0


def test_only_rank_0_prints_the_table():
    p = under_crun(2, "allreduce", "--bytes", "4,64K", *QUICK)
    assert p.returncode == 0, p.stderr
    rows = [line.split() for line in p.stdout.splitlines() if not line.startswith("#")]
    assert [row[0] for row in rows] == ["4", "65536"]
    assert all(len(row) == 5 and row[4] == "0" for row in rows)
    assert "2 ranks" in p.stdout and "busbw" in p.stdout


def test_alone_and_with_ranks_of_its_own():
    for args, n in (((), 1), (("--ranks", "4"), 4)):
        lines = objects(jobs.run([PERF, "broadcast", "--json", "--bytes", "5K", *args, *QUICK]))
        assert [(line["ranks"], line["bytes"], line["checked"]) for line in lines] == [(n, 5120, 0)]


@pytest.mark.parametrize("args, words", [
    ((), "name one collective"),
    (("allreduce", "broadcast"), "name one collective"),
    (("alltoall",), "there is no collective"),
    (("allreduce", "--bytes", "4,,5"), "--bytes"),
    (("allreduce", "--bytes", "5X"), "--bytes"),
    (("allreduce", "--bytes", "2000G"), "--bytes"),
    (("allreduce", "--bytes", "-4"), "--bytes"),
    (("allreduce", "--iters", "0"), "--iters"),
    (("allreduce", "--memory", "both"), "--memory"),
    (("allreduce", "--ranks", "0"), "--ranks"),
    (("allreduce", "--nonsense"), "--help"),
])
def test_wrong_command_lines(args, words):
    p = jobs.run([PERF, *args])
    assert p.returncode == 2 and words in p.stderr and p.stdout == ""


def test_ranks_below_a_launcher_are_refused():
    p = under_crun(2, "allreduce", "--ranks", "2")
    assert p.returncode != 0 and "--ranks" in p.stderr


def test_one_rank_has_nobody_to_send_to():
    p = jobs.run([PERF, "sendrecv"])
    assert p.returncode == 2 and "at least 2 ranks" in p.stderr


def test_help_and_version():
    text = jobs.run([PERF, "--help"]).stdout
    assert "--bytes LIST" in text and max(map(len, text.splitlines())) <= 80
    assert jobs.run([PERF, "--version"]).stdout.startswith("crw-perf ")


def test_sigterm_ends_it_in_time():
    """The library takes the signal for a request; crw-perf has to look for it."""
    p = subprocess.Popen([PERF, "allreduce", "--bytes", ",".join(["1M"] * 60)], stdout=subprocess.PIPE, text=True)
    assert p.stdout.readline()
    assert p.stdout.readline() and p.stdout.readline() and p.stdout.readline()
    p.send_signal(signal.SIGTERM)
    p.communicate(timeout=60)
    assert p.returncode == 143
