"""Snapshots that cannot be lost: short forms of the soak tests snapshot-kills and snapshot-damage."""

import os

import pytest

import jobs

IN_MEMORY = {"TMPDIR": "/dev/shm"} if os.access("/dev/shm", os.W_OK) else {}


def run(name, *args, on_disk=False, code=0):
    env = dict(os.environ, **({} if on_disk else IN_MEMORY))
    p = jobs.run([str(jobs.build_folder() / "tests/support/c/snapshots" / f"snapshot-{name}"), *map(str, args)], timeout=300, env=env)
    print(p.stdout + p.stderr)
    assert p.returncode == code, p.stdout + p.stderr
    return p.stdout


@pytest.mark.parametrize("on_disk, kills", [(True, 100), (False, 500)], ids=["disk", "memory"])
def test_kills_at_random_times(on_disk, kills):
    assert f" {kills} kills" in run("kills", "random", kills, on_disk=on_disk)


def test_kills_at_every_system_call():
    out = run("kills", "calls")
    assert int(out.split()[1]) > 100, out


def test_power_cuts_leave_a_whole_snapshot():
    run("power", 5)


@pytest.mark.parametrize("left_out", ["file", "folder"])
def test_a_missing_sync_would_be_found(left_out):
    run("power", 2, f"without-{left_out}-sync", code=1)


def test_system_calls_of_a_training_fail_or_hang():
    p = jobs.run_soak("snapshot_faults.py", "--sample", 24)
    assert p.returncode == 0, p.stdout + p.stderr


def test_every_system_call_refused():
    run("damage", "errors")


@pytest.mark.parametrize("args", [("bits",), ("truncation",), ("random", 20000)], ids=lambda args: args[0])
def test_damage_is_found(args):
    run("damage", *args)
