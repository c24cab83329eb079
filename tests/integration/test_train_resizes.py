"""The short form of the soak test resize-histories, that its counter can say no, and that no epoch is without its snapshot."""

import os

import train_resizes

import jobs


def run_histories(*args):
    p = jobs.run_soak("train_resizes.py", *args, timeout=600)
    print(p.stdout)
    return p


def test_every_sample_is_committed_once():
    p = run_histories("--histories", 4)
    assert p.returncode == 0, p.stdout + p.stderr


def test_a_sample_taken_for_another_is_found():
    p = run_histories("--histories", 1, "--wrong")
    assert p.returncode == 1 and "{3: 0, 4: 2" in p.stdout, p.stdout + p.stderr


def test_end_of_an_epoch_whose_save_was_cut_short(tmp_path):
    """The rank ends while the snapshot of the epoch's end is being written, and continues from memory behind it: that snapshot is
    written then."""
    folder, hangs = tmp_path / "s", tmp_path / "hangs"
    hangs.touch()
    worker = tmp_path / "worker.sh"
    worker.write_text(f'#!/bin/sh\n[ $TORCHELASTIC_RESTART_COUNT = 0 ] || rm {hangs}\nexec "$@"\n')
    worker.chmod(0o755)
    counts = jobs.build_folder() / "tests/support/c/counter/count-samples"
    p = jobs.run([jobs.crun(), "--standalone", "--max-restarts=1", "--restart-pause=0", worker, counts, "toy", "--epochs=2",
                  "--batch-size=50", f"--snapshot-dir={folder}", "--snapshot-every=0", "--keep=9",
                  "--fault=rank=0,step=6,kind=kill"], timeout=60,
                 env={**os.environ, "OMP_NUM_THREADS": "1",
                      **jobs.preload("slow_disk", SLOW_DISK=f"{folder}/.snap-00000000000000000005", SLOW_DISK_HANGS=hangs)})
    assert p.returncode == 0 and "resumed from memory" in p.stdout + p.stderr, p.stdout + p.stderr
    ends = [meta["epoch"] for meta, *_ in map(train_resizes.read_snapshot, sorted(folder.glob("snap-*"))) if meta["consumed"] == "0"]
    assert ends == ["1", "2"], p.stdout + p.stderr
