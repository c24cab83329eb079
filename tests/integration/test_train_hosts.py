"""`train` where each host has a snapshot folder of its own, and where one rank cannot go on: who is named.

Hosts are made up here: each worker believes to be the first of its host and gets a folder of its own."""

import re
import shutil

import pytest

import jobs

WORKERS = 2


def train_on_hosts(folder, *options, program="mnist"):
    script = 'export LOCAL_RANK=0; exec "$@" --snapshot-dir "$FOLDER/$RANK"'
    args = ["sh", "-c", f'FOLDER="$1"; shift; {script}', "sh", str(folder), jobs.train(), program, *map(str, options)]
    return jobs.run([jobs.crun(), "--standalone", f"--nproc-per-node={WORKERS}", "--no-python", *args])


def steps(folder, rank):
    return sorted(int(f.name[5:17]) for f in (folder / str(rank)).glob("snap-*"))


def snapshot(folder, rank, step):
    return folder / str(rank) / f"snap-{step:012}.safetensors"


@pytest.fixture(scope="module")
def two_folders(small_data, tmp_path_factory):
    """After one of two epochs, with the snapshots of steps 2, 4 and 5 on both hosts; and the line of the second
    epoch of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("hosts")
    options = ("--data", small_data, "--snapshot-every", 2, "--keep", 9, "--save-on-every-host")
    assert train_on_hosts(folder, *options, "--epochs", 1).returncode == 0
    assert steps(folder, 0) == steps(folder, 1) == [2, 4, 5]
    for step in (2, 4, 5):  # the statistics of batch norm are rank 0's, as with PyTorch's DDP, and so is the sum of losses
        assert snapshot(folder, 0, step).read_bytes() == snapshot(folder, 1, step).read_bytes()
    p = jobs.run(jobs.train_job(WORKERS, "--data", small_data, "--epochs", 2, "--metrics", folder / "whole"))
    assert p.returncode == 0, p.stderr
    return folder, options, jobs.read_metrics(folder / "whole")[0][-1]


def damage(path):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 4
    path.write_bytes(raw)


@pytest.mark.parametrize("lost, holder, step", [
    ({0: [4, 5]}, 1, 5),
    ({1: [2, 4, 5]}, 0, 5),
    ({0: [2, 4, 5], 1: [5]}, 1, 4),
    ({0: [5], 1: [5]}, 0, 4),
], ids=["first-older", "second-empty", "first-empty", "equal"])
@pytest.mark.parametrize("how", ["removed", "damaged"])
def test_hosts_agree_on_the_newest(two_folders, tmp_path, lost, holder, step, how):
    source, options, want = two_folders
    for rank in range(WORKERS):
        shutil.copytree(source / str(rank), tmp_path / str(rank))
        for lost_step in lost.get(rank, ()):
            path = snapshot(tmp_path, rank, lost_step)
            damage(path) if how == "damaged" else path.unlink()
    p = train_on_hosts(tmp_path, *options, "--epochs", 2, "--metrics", tmp_path / "m")
    assert p.returncode == 0, p.stderr
    assert f"resumed from the snapshot of step {step}" in p.stdout
    assert (f"is on the host of rank {holder}" in p.stdout) == (holder != 0)
    # A host warns of damage that is newer than what it has itself.
    assert ("is damaged" in p.stderr) == (how == "damaged")
    last = jobs.read_metrics(tmp_path / "m")[0][-1]
    same = ("step", "param_crc32c", "loss_all", "loss", "test_accuracy")
    assert [last[f] for f in same] == [want[f] for f in same]
    assert steps(tmp_path, 0)[-1] == steps(tmp_path, 1)[-1] == 10


def named(p):
    found = re.search(r"rank (\d+) .*failed first", p.stderr)
    return found and int(found[1])


@pytest.mark.parametrize("rank", range(WORKERS))
def test_the_rank_that_cannot_write_is_named(small_data, tmp_path, rank):
    """The others leave because of it, and crun blames nobody else."""
    (tmp_path / str(rank)).write_text("no folder")
    p = train_on_hosts(tmp_path, "--data", small_data, "--save-on-every-host", "--epochs", 1)
    assert p.returncode == 1 and named(p) == rank, p.stderr
    said = [line for line in p.stderr.splitlines() if line.startswith("train: ")]
    assert len(said) == 1 and str(tmp_path / str(rank)) in said[0], p.stderr


@pytest.mark.parametrize("kind", ["nan", "exit", "kill"])
@pytest.mark.parametrize("rank", [0, 2])
def test_the_rank_that_fails_is_named(tmp_path, kind, rank):
    p = jobs.run(jobs.train_job(3, "--fault", f"rank={rank},step=5,kind={kind}", program="toy"))
    assert p.returncode == 1 and named(p) == rank, p.stderr
