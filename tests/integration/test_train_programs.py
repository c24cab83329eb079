"""The programs of `train` beside mnist, and the options that all of them share."""

import importlib.util
import json
import os
import re
import shutil
import subprocess

import pytest

import jobs
from jobs import assert_one_sentence

PROGRAMS = ("toy", "classifier", "mnist")


def train(program, *args, **more):
    return jobs.run([jobs.train(), program, *map(str, args)], **more)


def small(program, small_data):
    """Options that make a program short."""
    return {"toy": (), "classifier": ("--epochs", 3, "--log-every", 0),
            "mnist": ("--data", small_data, "--epochs", 2)}[program]


def last_crc(path):
    return [m["param_crc32c"] for m in map(json.loads, path.read_text().splitlines()) if "param_crc32c" in m][-1]


# ---- the programs

@pytest.mark.sanitize
@pytest.mark.parametrize("shape, steps", [("10x2", 50), ("20x1", 16)])
def test_toy_learns(tmp_path, shape, steps):
    p = jobs.run(jobs.train_job(2, "--shape", shape, "--epochs", 20, "--metrics", tmp_path / "m", program="toy"))
    assert p.returncode == 0, p.stderr
    epochs, _ = jobs.read_metrics(tmp_path / "m")
    assert [e["step"] for e in epochs] == [steps * (i + 1) for i in range(20)]
    assert epochs[-1]["loss"] < 0.1 * epochs[0]["loss"] and epochs[-1]["test_accuracy"] is None
    assert epochs[0]["samples_per_s"] > 0


@pytest.mark.sanitize
def test_classifier_reports_every_step_once(tmp_path):
    p = jobs.run(jobs.train_job(2, "--epochs", 20, "--metrics", tmp_path / "m", program="classifier"))
    assert p.returncode == 0, p.stderr
    steps = re.findall(r"^step (\d+)  loss [\d.]+  accuracy [\d.]+ %$", p.stdout, re.M)
    assert steps == [str(i + 1) for i in range(20 * 63)]  # the primary rank alone
    epochs, _ = jobs.read_metrics(tmp_path / "m")
    assert epochs[-1]["test_accuracy"] > 0.9
    lines = jobs.read_lines(tmp_path / "m", "step_accuracy")
    assert len(lines) == len(steps)
    assert all(0 <= m["step_accuracy"] <= 1 and abs(m["step_accuracy"] * 16 % 1) < 1e-9 for m in lines)
    assert sum(m["step_accuracy"] for m in lines[-63:]) / 63 > 0.9


@pytest.mark.parametrize("program", PROGRAMS)
def test_same_bits_however_it_is_run(small_data, tmp_path, program):
    """Twice, and with batches gathered ahead."""
    crcs = set()
    for name, more in (("a", ()), ("b", ()), ("c", ("--prefetch", 3))):
        p = jobs.run(jobs.train_job(2, *small(program, small_data), *more, "--metrics", tmp_path / name,
                                    program=program))
        assert p.returncode == 0, p.stderr
        crcs.add(last_crc(tmp_path / name))
    assert len(crcs) == 1


# ---- the recipe

@pytest.mark.sanitize
@pytest.mark.parametrize("more", [("--optimizer", "sgd"), ("--lr", 0.001), ("--lr-schedule", "step"),
                                  ("--lr-schedule", "cosine"), ("--clip-norm", 0.5), ("--accumulate", 2),
                                  ("--precision", "bf16"), ("--seed", 1)], ids=lambda more: f"{more[0]}={more[1]}")
def test_an_option_changes_the_outcome(tmp_path, more):
    options = ("--epochs", 2, "--log-every", 0, "--metrics")
    assert train("classifier", *options, tmp_path / "plain").returncode == 0
    assert train("classifier", *options, tmp_path / "other", *more).returncode == 0
    assert last_crc(tmp_path / "plain") != last_crc(tmp_path / "other")


def test_cosine_ends_at_nothing_and_says_its_length(tmp_path):
    """cosine is cosine:EPOCHS, and behind its end nothing changes any more."""
    for name, options in (("a", ("--epochs", 2, "--lr-schedule", "cosine")),
                          ("b", ("--epochs", 2, "--lr-schedule", "cosine:2")),
                          ("c", ("--epochs", 4, "--lr-schedule", "cosine:2"))):
        assert train("toy", *options, "--metrics", tmp_path / name).returncode == 0
    assert last_crc(tmp_path / "a") == last_crc(tmp_path / "b") == last_crc(tmp_path / "c")


def test_a_batch_twice_as_large_or_two_of_them(tmp_path):
    """Nearly the same gradient, and the same number of steps."""
    for name, options in (("a", ("--accumulate", 4)), ("b", ("--batch-size", 40))):
        assert train("toy", *options, "--metrics", tmp_path / name).returncode == 0
    a, b = (jobs.read_metrics(tmp_path / name)[0][-1] for name in "ab")
    assert a["step"] == b["step"] == 250 and a["loss"] == pytest.approx(b["loss"], rel=1e-5)


# ---- max-steps, saving

@pytest.mark.sanitize
@pytest.mark.parametrize("program", PROGRAMS)
def test_max_steps_and_on_from_there(small_data, tmp_path, program):
    options = (*small(program, small_data), "--snapshot-dir", tmp_path / "s", "--metrics")
    p = train(program, *options, tmp_path / "m", "--max-steps", 7)
    assert p.returncode == 0 and "step 7 is the last" in p.stdout, p.stderr
    assert jobs.read_lines(tmp_path / "m", "max_steps")[0]["step"] == 7
    p = train(program, *options, tmp_path / "m")
    assert p.returncode == 0 and "resumed from the snapshot of step 7" in p.stdout
    assert train(program, *small(program, small_data), "--metrics", tmp_path / "whole").returncode == 0
    assert last_crc(tmp_path / "m") == last_crc(tmp_path / "whole")


def test_save_every_epochs(tmp_path):
    p = train("toy", "--epochs", 5, "--save-every-epochs", 2, "--keep", 9, "--snapshot-dir", tmp_path)
    assert p.returncode == 0, p.stderr
    assert sorted(f.name for f in tmp_path.iterdir()) == [f"snap-{n:012}.safetensors" for n in (200, 400, 500)]


def test_unwritable_outputs(tmp_path):
    path = tmp_path / "no" / "such" / "folder"
    assert_one_sentence(train("toy", "--save-model", path), 1, "--save-model", str(path), "No such file")


def test_a_device_stays_a_device(tmp_path):
    """A saved model takes the place of an earlier one by its name, which must not be that of a pipe or device."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert_one_sentence(train("toy", "--save-model", path), 1, "--save-model", str(path), "no regular file")
    assert path.is_fifo()


# ---- the drawing

def load_plot_metrics():
    spec = importlib.util.spec_from_file_location("plot_metrics", jobs.ROOT / "python" / "examples" / "plot_metrics.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_plot_is_gone(tmp_path):
    assert_one_sentence(train("toy", "--plot", tmp_path / "p.svg"), 2, "--plot is gone", "plot_metrics.py")
    assert not list(tmp_path.iterdir())


def test_curves_of_a_resumed_run(tmp_path):
    """Steps that were taken again count once; without lines of steps, the means of the epochs are the curve."""
    options = ("classifier", "--snapshot-dir", tmp_path / "s")
    for log_every in (1, 0):
        metrics = tmp_path / f"m{log_every}"
        for args in ((*options, "--epochs", 2), (*options, "--epochs", 4)):
            assert train(*args, "--log-every", log_every, "--metrics", metrics).returncode == 0
        lines = metrics.read_text().splitlines(keepends=True)
        loss, accuracy = load_plot_metrics().curves([*lines, *lines[-3:], lines[-1][:9]])
        steps = [step for step, _ in loss]
        assert steps == (list(range(1, steps[-1] + 1)) if log_every else [step for step, _ in accuracy])
        assert len(accuracy) == 4 and loss[-1][1] < loss[0][1]
        shutil.rmtree(tmp_path / "s")


# ---- failures on request

def test_resume_of_every_program_with_every_optimizer(small_data):
    """The short form of the soak test resume-matrix: two kills of each."""
    p = jobs.run_soak("train_resume.py", "--rounds", 2, "--data", small_data, timeout=900)
    assert p.returncode == 0, p.stdout + p.stderr
    print(p.stdout)


def test_fault_of_a_rank_that_is_not(tmp_path):
    assert_one_sentence(train("toy", "--fault", "rank=1,step=1,kind=kill"), 1, "no rank 1 among 1 worker")


@pytest.mark.sanitize
def test_faults_alone():
    p = train("toy", "--fault", "rank=0,step=3,kind=exit")
    assert_one_sentence(p, 1, "rank 0: step 3: exit, as --fault asks")
    p = train("toy", "--fault", "rank=0,step=3,kind=kill")
    assert_one_sentence(p, -9, "step 3: kill")


@pytest.mark.sanitize
def test_nan_is_not_learned_from(tmp_path):
    """The step is not taken: what is saved is the state before it."""
    p = train("toy", "--fault", "rank=0,step=3,kind=nan", "--snapshot-dir", tmp_path)
    assert p.returncode == 1 and "the loss of step 3 is nan" in p.stderr
    assert [f.name for f in tmp_path.iterdir()] == ["snap-000000000002.safetensors"]


def test_a_run_that_explodes_says_so():
    p = train("toy", "--lr", 1e10)
    assert_one_sentence(p, 1, "a lower --lr")


def test_hang():
    p = subprocess.Popen([jobs.train(), "toy", "--fault", "rank=0,step=3,kind=hang"], stdin=subprocess.DEVNULL,
                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert "step 3: hang" in p.stderr.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            p.wait(timeout=0.5)
    finally:
        p.kill()
        p.wait()
        p.stderr.close()
