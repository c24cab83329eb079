"""The program `train`, alone and under crun: what it does with good input, and what it says of bad input."""

import gzip
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time

import pytest

import jobs
from jobs import MNIST_FILES as FILES, assert_one_sentence


@pytest.fixture
def data(small_data, tmp_path):
    """A copy of the small data that a test may damage."""
    folder = tmp_path / "data"
    shutil.copytree(small_data, folder)
    return folder


def train_alone(*args, **more):
    return jobs.run([jobs.train(), "mnist", *map(str, args)], **more)


def said_by_train(p):
    return [line for line in p.stderr.splitlines() if line.startswith("train: ")]


# ---- good input

def test_alone(small_data, tmp_path):
    metrics = tmp_path / "m"
    p = train_alone("--data", small_data, "--epochs", 2, "--metrics", metrics)
    assert p.returncode == 0 and p.stderr == ""
    epochs, resumes = jobs.read_metrics(metrics)
    assert [e["epoch"] for e in epochs] == [1, 2] and resumes == []
    assert [e["step"] for e in epochs] == [10, 20]
    assert epochs[1]["loss"] < epochs[0]["loss"]
    assert epochs[0]["loss"] == pytest.approx(epochs[0]["loss_all"], rel=1e-6)
    assert 0 < epochs[1]["test_accuracy"] <= 1 and len(epochs[1]["param_crc32c"]) == 8
    assert epochs[1]["images_per_s"] > 0


@pytest.mark.parametrize("n_workers", [1, 2, 3, 4])
def test_same_parameters_every_time(small_data, tmp_path, n_workers):
    crcs = set()
    for i in range(2):
        metrics = tmp_path / f"m{i}"
        p = jobs.run(jobs.train_job(n_workers, "--data", small_data, "--epochs", 1, "--metrics", metrics))
        assert p.returncode == 0, p.stderr
        epochs, _ = jobs.read_metrics(metrics)
        assert len(epochs) == 1  # rank 0 alone writes
        crcs.add(epochs[0]["param_crc32c"])
    assert len(crcs) == 1


def test_more_epochs_continue_a_run(small_data, tmp_path):
    whole, parts, snapshots = tmp_path / "whole", tmp_path / "parts", tmp_path / "a" / "b"
    assert train_alone("--data", small_data, "--epochs", 3, "--metrics", whole).returncode == 0
    for n in (1, 3):
        p = train_alone("--data", small_data, "--epochs", n, "--metrics", parts, "--snapshot-dir", snapshots)
        assert p.returncode == 0, p.stderr
    epochs, resumes = jobs.read_metrics(parts)
    assert [e["epoch"] for e in epochs] == [1, 2, 3] and [r["step"] for r in resumes] == [10]
    assert "loss" not in resumes[0] and "test_accuracy" not in resumes[0]
    want, _ = jobs.read_metrics(whole)
    for field in ("param_crc32c", "loss", "loss_all", "test_accuracy", "step"):
        assert [e[field] for e in epochs] == [e[field] for e in want]


def test_a_finished_run_says_so(small_data, tmp_path):
    args = ("--data", small_data, "--epochs", 1, "--snapshot-dir", tmp_path / "s")
    assert train_alone(*args).returncode == 0
    p = train_alone(*args)
    assert p.returncode == 0 and "done already" in p.stdout


def test_keep(small_data, tmp_path):
    p = train_alone("--data", small_data, "--epochs", 2, "--snapshot-every", 3, "--keep", 2, "--snapshot-dir", tmp_path)
    assert p.returncode == 0, p.stderr
    assert sorted(f.name for f in tmp_path.iterdir()) == [f"snap-{n:012}.safetensors" for n in (18, 20)]


def drawn_on_a_terminal(*args):
    """What train writes to a terminal as standard error."""
    master, slave = os.openpty()
    p = subprocess.Popen([jobs.train(), *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=slave)
    os.close(slave)
    drawn = b""
    while True:
        try:
            drawn += os.read(master, 65536)
        except OSError:  # the terminal's other side is closed
            break
    p.communicate()
    os.close(master)
    return drawn


def test_progress_bar_on_a_terminal_only(small_data):
    drawn = drawn_on_a_terminal("--data", small_data, "--epochs", 1)
    assert b"\r" in drawn and b"epoch 1/1" in drawn
    q = train_alone("--data", small_data, "--epochs", 1)
    assert "\r" not in q.stdout + q.stderr


def test_progress_bar_is_cleared_before_an_error(small_data):
    drawn = drawn_on_a_terminal("--data", small_data, "--epochs", 1, "--fault", "rank=0,step=3,kind=nan")
    error = drawn.rindex(b"train: rank 0: ")  # behind the line of --fault
    assert drawn[:error].endswith(b"\r\x1b[K"), drawn[error - 100:]


@pytest.mark.parametrize("n_workers", [1, 2])
def test_sigterm_finishes_the_step_and_saves(small_data, tmp_path, n_workers):
    whole, parts, snapshots = tmp_path / "whole", tmp_path / "parts", tmp_path / "s"
    saved = ("--data", small_data, "--snapshot-dir", snapshots, "--metrics", parts)
    p = subprocess.Popen(jobs.train_job(n_workers, *saved, "--epochs", 1000000, crun_args=["--shutdown-timeout=300"]),
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    jobs.wait_for(lambda: jobs.read_metrics(parts)[0])
    p.send_signal(signal.SIGTERM)
    out, err = p.communicate(timeout=60)
    assert p.returncode == 1 and "stopped on request after step" in out, err
    n_epochs = len(jobs.read_metrics(parts)[0]) + 2  # the one in which it was stopped, and another
    p = jobs.run(jobs.train_job(n_workers, *saved, "--epochs", n_epochs))
    assert p.returncode == 0, p.stderr
    epochs, resumes = jobs.read_metrics(parts)
    assert len(resumes) == 1
    p = jobs.run(jobs.train_job(n_workers, "--data", small_data, "--epochs", n_epochs, "--metrics", whole))
    assert p.returncode == 0, p.stderr
    want = jobs.read_metrics(whole)[0][-1]
    for field in ("param_crc32c", "loss", "loss_all", "test_accuracy", "step"):
        assert epochs[-1][field] == want[field]


def test_another_world_size_resumes(small_data, tmp_path):
    options = ("--data", small_data, "--snapshot-dir", tmp_path / "s", "--metrics", tmp_path / "m")
    assert jobs.run(jobs.train_job(2, *options, "--epochs", 1)).returncode == 0
    p = jobs.run(jobs.train_job(3, *options, "--epochs", 2))
    assert p.returncode == 0, p.stderr
    epochs, resumes = jobs.read_metrics(tmp_path / "m")
    assert len(resumes) == 1 and [e["epoch"] for e in epochs] == [1, 2]


def test_killed_workers(small_data):
    """The short form of the soak test train-kills: 5 rounds with little data."""
    p = jobs.run_soak("train_kills.py", "--rounds", 5, "--data", small_data, "--limit", 640, "--epochs", 5, timeout=600)
    assert p.returncode == 0, p.stdout + p.stderr
    print(p.stdout)


# ---- bad input: one clear sentence, a non-zero exit, nothing lost

USAGE_ERRORS = [
    (["--nonsense"], ["--nonsense"]),
    (["--epochs", "0"], ["--epochs 0", "whole number"]),
    (["--epochs", "-1"], ["--epochs -1"]),
    (["--epochs", "1x"], ["--epochs 1x"]),
    (["--batch-size", "99999999999999999999"], ["--batch-size"]),
    (["--lr", "nan"], ["--lr nan", "positive"]),
    (["--lr"], ["--lr", "value is missing"]),
    (["--backend", "tpu"], ["--backend tpu", "auto, cpu or cuda"]),
    (["--optimizer", "adam"], ["--optimizer adam", "sgd, adamw or adadelta"]),
    (["--precision", "fp16"], ["--precision fp16", "fp32, bf16 or tf32"]),
    (["--lr-schedule", "linear"], ["--lr-schedule linear", "step[:EVERY[:GAMMA]]"]),
    (["--lr-schedule", "step:0"], ["--lr-schedule step:0"]),
    (["--lr-schedule", "step:1:0.5:2"], ["--lr-schedule step:1:0.5:2"]),
    (["--lr-schedule", "constant:1"], ["--lr-schedule constant:1"]),
    (["--lr-schedule", "cosine:5:1"], ["--lr-schedule cosine:5:1"]),
    (["--clip-norm", "0"], ["--clip-norm 0", "positive"]),
    (["--accumulate", "0"], ["--accumulate 0"]),
    (["--max-steps", "0"], ["--max-steps 0"]),
    (["--save-every-epochs", "x"], ["--save-every-epochs x"]),
    (["--prefetch", "-1"], ["--prefetch -1"]),
    (["--fault", "rank=0,step=1"], ["--fault rank=0,step=1", "kind=kill|exit|hang|nan"]),
    (["--fault", "rank=0,step=0,kind=kill"], ["--fault rank=0,step=0,kind=kill"]),
    (["--fault", "rank=0,step=1,kind=melt"], ["--fault rank=0,step=1,kind=melt"]),
    (["--fault", ""], ["--fault"]),
    (["toy", "--shape", "5x5"], ["--shape 5x5", "10x2 or 20x1"]),
    (["toy", "--data", "x"], ["--data is for mnist"]),
    (["classifier", "--shape", "20x1"], ["--shape is for toy"]),
    (["cifar"], ["unknown program 'cifar'"]),
    (["mnist", "more"], ["unexpected argument 'more'"]),
]


@pytest.mark.parametrize("args, words", USAGE_ERRORS)
def test_usage_error_alone(args, words):
    assert_one_sentence(jobs.run([jobs.train(), *args]), 2, *words)


@pytest.mark.parametrize("args, words", USAGE_ERRORS[:2])
def test_usage_error_under_crun_is_said_once(args, words):
    p = jobs.run([jobs.crun(), "--standalone", "--nproc-per-node=3", jobs.train(), *args])
    said = said_by_train(p)
    assert p.returncode == 1 and len(said) == 1 and all(w in said[0] for w in words), p.stderr


def test_output_that_cannot_be_written():
    with open("/dev/full", "w") as full:
        p = subprocess.run([jobs.train(), "--help"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert_one_sentence(p, 1, "cannot write to standard output")


def test_limit_of_file_size():
    """It holds for memory that ranks share, too. Every rank reports it; none is ended by SIGXFSZ."""
    p = jobs.run([jobs.crun(), "--standalone", "--nproc-per-node=2", jobs.train(), "toy"],
                 preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024)))
    assert p.returncode == 1 and "XFSZ" not in p.stdout + p.stderr, p.stderr
    assert "File too large" in p.stdout + p.stderr, p.stdout + p.stderr


def test_missing_data(tmp_path):
    p = train_alone("--data", tmp_path / "nowhere")
    assert_one_sentence(p, 1, "nowhere", "train-images-idx3-ubyte")


def test_bad_data_under_crun_is_said_once(tmp_path):
    p = jobs.run(jobs.train_job(3, "--data", tmp_path / "nowhere"))
    said = said_by_train(p)
    assert p.returncode == 1 and len(said) == 1 and "nowhere" in said[0], p.stderr


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("cut", [0, 3, 7, 100, -1])
def test_truncated_idx(data, name, cut):
    path = data / name
    path.write_bytes(path.read_bytes()[:cut])
    assert_one_sentence(train_alone("--data", data, "--epochs", 1), 1, name)


def test_truncated_gz(data):
    raw = (data / FILES[0]).read_bytes()
    (data / FILES[0]).unlink()
    packed = gzip.compress(raw)
    (data / (FILES[0] + ".gz")).write_bytes(packed[: len(packed) // 2])
    assert_one_sentence(train_alone("--data", data, "--epochs", 1), 1, FILES[0])


def test_wrong_magic_and_wrong_label(data):
    labels = data / FILES[1]
    raw = bytearray(labels.read_bytes())
    raw[2] = 0x0D
    labels.write_bytes(raw)
    assert_one_sentence(train_alone("--data", data), 1, FILES[1])
    raw[2] = 0x08
    raw[8 + 17] = 10
    labels.write_bytes(raw)
    assert_one_sentence(train_alone("--data", data), 1, "label 17", "is 10")


def test_images_and_labels_differ_in_number(data):
    labels = data / FILES[1]
    labels.write_bytes(struct.pack(">II", 0x801, 639) + labels.read_bytes()[8:-1])
    assert_one_sentence(train_alone("--data", data), 1, "640", "639")


def newest(folder):
    return sorted(folder.glob("snap-*.safetensors"))[-1]


def contents(folder):
    return {f.name: f.read_bytes() for f in folder.iterdir()}


@pytest.fixture
def snapshots(small_data, tmp_path):
    """A folder with the snapshots of steps 3, 6, 9 and 10."""
    folder = tmp_path / "snapshots"
    p = train_alone("--data", small_data, "--epochs", 1, "--snapshot-every", 3, "--keep", 9, "--snapshot-dir", folder)
    assert p.returncode == 0, p.stderr
    return folder


def test_damaged_newest_snapshot_falls_back(small_data, snapshots, tmp_path):
    path = newest(snapshots)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    p = train_alone("--data", small_data, "--epochs", 1, "--snapshot-dir", snapshots, "--metrics", tmp_path / "m")
    assert p.returncode == 0
    assert len(p.stderr.splitlines()) == 1 and path.name in p.stderr
    assert "resumed from the snapshot of step 9" in p.stdout
    whole = tmp_path / "whole"
    train_alone("--data", small_data, "--epochs", 1, "--metrics", whole)
    assert jobs.read_metrics(tmp_path / "m")[0][-1]["param_crc32c"] == jobs.read_metrics(whole)[0][-1]["param_crc32c"]


@pytest.mark.parametrize("damage", ["empty", "half", "garbage", "longer", "edited"])
def test_every_damage_falls_back(small_data, snapshots, damage):
    path = newest(snapshots)
    raw = path.read_bytes()
    edited = raw.replace(b'"seed":"0"', b'"seed":"1"')
    assert edited != raw
    path.write_bytes({"empty": b"", "half": raw[: len(raw) // 2], "garbage": os.urandom(4096), "longer": raw + b"x",
                      "edited": edited}[damage])
    p = train_alone("--data", small_data, "--epochs", 1, "--snapshot-dir", snapshots)
    assert p.returncode == 0 and "step 9" in p.stdout and path.name in p.stderr, p.stdout + p.stderr


def test_a_file_that_only_claims_to_be_huge_falls_back(small_data, snapshots):
    """A hole of a terabyte costs neither memory nor time."""
    path = newest(snapshots)
    with open(path, "r+b") as f:
        f.truncate(1 << 40)
    started = time.monotonic()
    p = train_alone("--data", small_data, "--epochs", 1, "--snapshot-dir", snapshots)
    assert p.returncode == 0 and "step 9" in p.stdout and path.name in p.stderr, p.stdout + p.stderr
    assert time.monotonic() - started < 30


def faults(folder, fault):
    return {**os.environ, **jobs.preload("snapshot_faults", SNAPSHOT_FAULTS=folder, SNAPSHOT_FAULT=fault)}


def start_toy(folder, *options, **more):
    """A training that ends by SIGTERM alone."""
    return subprocess.Popen([jobs.train(), "toy", "--epochs", "1000000000", "--save-every-epochs", "1000000000",
                             "--snapshot-dir", str(folder), *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, **more)


@pytest.mark.parametrize("fault, grace, words", [("write 1 28 1000", 60, "No space left on device"),
                                                 ("fsync 1 -1000000", 2, "still being written")], ids=["full", "hangs"])
def test_sigterm_is_a_success_only_with_the_step_on_disk(tmp_path, fault, grace, words):
    """A scheduler that preempts a job believes exit code 0. The grace is short: the sentence comes before SIGKILL would."""
    with start_toy(tmp_path, env={**faults(tmp_path, fault), "CRUN_SHUTDOWN_TIMEOUT": str(grace)}) as p:
        assert p.stdout.readline()
        time.sleep(0.1)
        p.terminate()
        asked = time.monotonic()
        said = p.communicate(timeout=60)[1]
    assert p.returncode == 1 and not list(tmp_path.glob("snap-*")), said
    assert re.search(rf"^train: rank 0: step \d+ is not on disk: .*{words}", said, re.M), said
    assert time.monotonic() - asked < 20


def test_the_last_save_is_tried_again(tmp_path):
    """All four attempts of the first one fail; the disk has room after that."""
    with start_toy(tmp_path, env=faults(tmp_path, "write 1 28 4")) as p:
        assert p.stdout.readline()
        time.sleep(0.1)
        p.terminate()
        out, said = p.communicate(timeout=60)
    step = int(re.search(r"stopped on request after step (\d+)", out)[1])
    assert p.returncode == 0 and [f.name for f in tmp_path.glob("snap-*")] == [f"snap-{step:012}.safetensors"], said
    assert "No space left on device" in said


def test_a_stale_file_does_not_end_the_training(tmp_path):
    """ESTALE, as NFS has it after a failover: no other run has the folder."""
    p = jobs.run([jobs.train(), "toy", "--epochs", "3", "--snapshot-dir", str(tmp_path)], env=faults(tmp_path, "fsync 5 116 1"))
    assert p.returncode == 0 and "Stale file handle" in p.stderr, p.stdout + p.stderr
    assert (tmp_path / "snap-000000000300.safetensors").exists()


def test_a_run_that_saves_late_leaves_the_folder_to_the_one_between(tmp_path):
    with start_toy(tmp_path) as p:
        assert p.stdout.readline()
        between = jobs.run([jobs.train(), "toy", "--epochs", "3", "--snapshot-dir", str(tmp_path)])
        assert between.returncode == 0, between.stdout + between.stderr
        before = contents(tmp_path)
        p.terminate()
        said = p.communicate(timeout=60)[1]
    assert p.returncode == 1 and "another run" in said and str(tmp_path) in said, said
    assert contents(tmp_path) == before


def test_damaged_snapshots_alone_are_not_a_new_training(small_data, snapshots):
    """Weeks of work may be in them."""
    for path in snapshots.glob("snap-*"):
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)
    before = contents(snapshots)
    p = train_alone("--data", small_data, "--epochs", 1, "--snapshot-dir", snapshots)
    assert p.returncode == 1 and "use another folder" in p.stderr.splitlines()[-1], p.stdout + p.stderr
    assert contents(snapshots) == before


def test_a_snapshot_that_cannot_be_read_is_not_passed_over(small_data, snapshots):
    """Its server may be away for a moment: what is older would throw away work that is still there."""
    p = train_alone("--data", small_data, "--epochs", 1, "--snapshot-dir", snapshots, env=faults(snapshots, "read 1 5"))
    assert_one_sentence(p, 1, newest(snapshots).name, "Input/output error")


def test_a_later_run_in_the_folder_ends_this_one(tmp_path):
    """On a file system without locks. Days of training that nothing saves would be worse."""
    options = ("--epochs", 1000000000, "--save-every-epochs", 10, "--snapshot-dir", tmp_path)
    with subprocess.Popen([jobs.train(), "toy", *map(str, options)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          stdin=subprocess.DEVNULL, text=True) as p:
        jobs.wait_for(lambda: list(tmp_path.glob("snap-*")))
        (tmp_path / "fence").write_text("crun snapshot fence 1\ninstance b2\ngeneration 0\n")
        (tmp_path / "fence").rename(tmp_path / "snapshots.fence")
        said = p.communicate(timeout=60)[1]
    assert p.returncode == 1 and "another run" in said and str(tmp_path) in said, said


def test_a_lock_of_the_generation_before_costs_no_restart(tmp_path):
    """As a lost host's on a file server, until that one notices."""
    folder, taken = tmp_path / "s", tmp_path / "taken"
    holder = ("import fcntl, os, pathlib, sys, time; fd = os.open(sys.argv[1], os.O_RDONLY); fcntl.flock(fd, fcntl.LOCK_EX); "
              "pathlib.Path(sys.argv[2]).touch(); time.sleep(60)")
    job = jobs.train_job(1, "--snapshot-dir", folder, "--epochs", 300, "--save-every-epochs", 1,
                         "--fault", "rank=0,step=20000,kind=kill", program="toy", crun_args=("--max-restarts=1",))
    with subprocess.Popen(job, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as p:
        jobs.wait_for(lambda: list(folder.glob("snap-*")))
        with subprocess.Popen([sys.executable, "-c", holder, str(folder), str(taken)]) as h:
            started = time.monotonic()
            out, said = p.communicate(timeout=120)
            assert taken.exists()
            h.kill()
    assert p.returncode == 0 and "resumed from" in out, out + said
    assert time.monotonic() - started < 60


def test_two_runs_do_not_share_a_snapshot_folder(small_data, tmp_path):
    """The second says so and changes nothing; after the first has ended the folder is free again."""
    folder, metrics = tmp_path / "s", tmp_path / "m"
    args = ("--data", small_data, "--snapshot-dir", folder)
    first = subprocess.Popen([jobs.train(), *map(str, args), "--epochs", "100000", "--metrics", str(metrics)],
                             stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        jobs.wait_for(lambda: jobs.read_metrics(metrics)[0])
        assert_one_sentence(train_alone(*args, "--seed", 5), 1, str(folder), "another run")
    finally:
        first.kill()
        first.wait()
    p = train_alone(*args, "--epochs", 1)
    assert p.returncode == 0 and "resumed" in p.stdout, p.stderr


def test_snapshot_of_another_network(small_data, tmp_path):
    """A whole and valid snapshot, of a smaller network: refused, and not touched."""
    folder = tmp_path / "other"
    p = jobs.run([str(jobs.build_folder() / "tests/workers/write-other-network"), str(folder)])
    assert p.returncode == 0, p.stderr
    before = contents(folder)
    assert len(before) == 1
    p = train_alone("--data", small_data, "--epochs", 1, "--snapshot-dir", folder)
    assert_one_sentence(p, 1, str(folder))
    assert contents(folder) == before


def test_snapshot_of_another_recipe(small_data, snapshots):
    before = contents(snapshots)
    for option, value in (("--seed", 1), ("--limit", 320), ("--optimizer", "sgd"), ("--lr", 0.1),
                          ("--lr-schedule", "step"), ("--accumulate", 2), ("--clip-norm", 1), ("--precision", "bf16")):
        p = train_alone("--data", small_data, "--epochs", 2, "--snapshot-dir", snapshots, option, value)
        assert_one_sentence(p, 1, str(snapshots), "another --snapshot-dir")
        assert contents(snapshots) == before


def test_snapshot_folder_is_a_file(small_data, tmp_path):
    path = tmp_path / "file"
    path.write_text("mine")
    assert_one_sentence(train_alone("--data", small_data, "--snapshot-dir", path), 1, str(path))
    assert path.read_text() == "mine"


def test_unwritable_snapshot_folder(small_data):
    assert_one_sentence(train_alone("--data", small_data, "--snapshot-dir", "/proc/crun-snapshots"), 1,
                        "/proc/crun-snapshots")


def test_unwritable_metrics(small_data, tmp_path):
    path = tmp_path / "no" / "such" / "folder"
    assert_one_sentence(train_alone("--data", small_data, "--metrics", path), 1, str(path))


def test_cuda_without_a_device(small_data):
    assert_one_sentence(train_alone("--data", small_data, "--backend", "cuda"), 1, "--backend cuda")


def test_full_disk_while_saving(small_data, tmp_path):
    """Room for one snapshot and a half: the first is saved, later ones fail. Training goes on to its end, and exits with 1,
    because its last step is not on disk; every save that failed has its sentence."""
    want = tmp_path / "want"
    assert train_alone("--data", small_data, "--epochs", 2, "--metrics", want).returncode == 0
    script = ('set -e; d=$(mktemp -d); mount -t tmpfs -o size=4m none "$d"; '
              '"$1" mnist --data "$2" --epochs 2 --snapshot-every 3 --snapshot-dir "$d" --metrics "$3" || echo code $?; '
              'ls -a "$d"; mount -o remount,size=40m "$d"; "$1" mnist --data "$2" --epochs 2 --snapshot-dir "$d"')
    p = jobs.run(["unshare", "--mount", "sh", "-c", script, "sh", jobs.train(), str(small_data), str(tmp_path / "m")])
    if "unshare failed" in p.stderr or "mount:" in p.stderr:
        pytest.skip("no mount namespace to make a small file system in: " + p.stderr.strip())
    assert p.returncode == 0 and "code 1\n" in p.stdout, p.stdout + p.stderr
    assert "No space left on device" in p.stderr and "training goes on" in p.stderr
    assert re.search(r"^train: rank 0: step 20 is not on disk: .*No space left on device", p.stderr, re.M), p.stderr
    failed = [line["snapshot_failed"] for line in jobs.read_lines(tmp_path / "m", "snapshot_failed")]
    steps = [int(re.search(r"snap-(\d+)", sentence)[1]) for sentence in failed]
    assert list(dict.fromkeys(steps)) == [6, 9, 10, 12, 15, 18, 20] and all("No space left" in f for f in failed)
    listed = [n for n in p.stdout.splitlines() if n.startswith(("snap-", ".snap", "tmp", ".tmp"))]
    assert listed == ["snap-000000000003.safetensors"]
    assert "resumed from the snapshot of step 3" in p.stdout
    assert jobs.read_metrics(tmp_path / "m")[0][-1]["param_crc32c"] == jobs.read_metrics(want)[0][-1]["param_crc32c"]
