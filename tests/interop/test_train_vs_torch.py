"""`train` beside PyTorch 2.13 DDP: the same seed gives the same loss curve."""

import os
import sys

import pytest

import jobs

OPTIONS = ("--limit", "6400", "--epochs", "2", "--seed", "0", "--log-every", "1")


def run_both(folder, *options, program="mnist"):
    """Metrics files of `train` and of PyTorch, each on two workers under crun."""
    for name, job in (("ours", jobs.train_job), ("theirs", jobs.torch_job)):
        p = jobs.run(job(2, *options, "--metrics", folder / name, program=program),
                     env=dict(os.environ, PYTHON_EXEC=sys.executable))
        assert p.returncode == 0, p.stderr
    return folder / "ours", folder / "theirs"


def step_losses(path, n=100):
    lines = jobs.read_lines(path, "step_loss")[:n]
    assert [m["step"] for m in lines] == list(range(1, n + 1))
    return [m["step_loss"] for m in lines]


def differences(ours, theirs):
    return [abs(o / t - 1) for o, t in zip(ours, theirs, strict=True)]


def largest_difference(ours, theirs):
    return max(differences(ours, theirs))


@pytest.fixture(scope="module")
def mnist_metrics(tmp_path_factory):
    return run_both(tmp_path_factory.mktemp("runs"), *OPTIONS)


@pytest.fixture(scope="module")
def losses(mnist_metrics):
    """Epoch lines of both."""
    return [jobs.read_lines(path, "loss_all") for path in mnist_metrics]


# ---- the first 100 steps of each program

def test_first_steps_of_mnist(mnist_metrics):
    """Equal to seven digits until a relu or a maximum falls the other way, in ours or in PyTorch's: from there
    the difference grows with every step, as PyTorch's own in fp32 does from PyTorch in double."""
    apart = differences(*map(step_losses, mnist_metrics))
    print(f"mnist: half of them below {sorted(apart)[50]:.1e}, the first 50 below {max(apart[:50]):.1e}, all below "
          f"{max(apart):.1e}")
    assert sorted(apart)[50] < 1e-5 and sorted(apart)[95] < 1e-4 and max(apart) < 3e-4


@pytest.mark.parametrize("shape", ["10x2", "20x1"])
def test_first_steps_of_toy(tmp_path, shape):
    paths = run_both(tmp_path, "--shape", shape, "--max-steps", 100, "--log-every", 1, program="toy")
    worst = largest_difference(*map(step_losses, paths))
    print(f"toy {shape}: {worst:.1e}")
    assert worst < 1e-4


@pytest.fixture(scope="module")
def classifier_metrics(tmp_path_factory):
    return run_both(tmp_path_factory.mktemp("classifier"), "--epochs", 2, program="classifier")


def test_first_steps_of_classifier(classifier_metrics):
    ours, theirs = classifier_metrics
    worst = largest_difference(step_losses(ours), step_losses(theirs))
    print(f"classifier: {worst:.1e}")
    assert worst < 1e-4
    right = [[m["step_accuracy"] for m in jobs.read_lines(path, "step_accuracy")] for path in (ours, theirs)]
    assert right[0] == pytest.approx(right[1], abs=1e-9)
    tests = [[m["test_accuracy"] for m in jobs.read_lines(path, "test_accuracy")] for path in (ours, theirs)]
    assert tests[0] == pytest.approx(tests[1], abs=1e-9)


# ---- the options that all programs share

@pytest.mark.parametrize("options", [
    ("--optimizer", "sgd", "--lr", "0.1", "--accumulate", "3", "--clip-norm", "0.3", "--lr-schedule", "step:1:0.5"),
    ("--optimizer", "adadelta", "--lr", "1", "--batch-size", "16", "--lr-schedule", "cosine:5"),
], ids=lambda options: options[1])
def test_shared_options(tmp_path, options):
    """Batches left over at the end of an epoch make a smaller step in both."""
    paths = run_both(tmp_path, *options, "--epochs", 5, program="classifier")
    worst = largest_difference(*(step_losses(path, 105 if "sgd" in options else 160) for path in paths))
    print(f"{options[1]}: {worst:.1e}")
    assert worst < 1e-4


def test_bf16(tmp_path, classifier_metrics):
    """As near to PyTorch's bf16 as that is to fp32. Theirs rounds outputs of layers, too; ours does not."""
    ours, theirs = run_both(tmp_path, "--precision", "bf16", "--epochs", 2, program="classifier")
    exact = step_losses(classifier_metrics[1])
    rounding = largest_difference(step_losses(theirs), exact)
    print(f"PyTorch's bf16 differs from fp32 by {rounding:.1e}, ours from it by "
          f"{largest_difference(step_losses(ours), exact):.1e}, ours from theirs by "
          f"{largest_difference(step_losses(ours), step_losses(theirs)):.1e}")
    assert 1e-6 < largest_difference(step_losses(ours), exact) <= 2 * rounding
    assert largest_difference(step_losses(ours), step_losses(theirs)) <= 2 * rounding


# ---- mnist, epoch by epoch

@pytest.mark.parametrize("field", ["loss", "loss_all"])
def test_mean_loss_of_each_epoch(losses, field):
    ours, theirs = losses
    assert len(ours) == len(theirs) == 2
    for o, t in zip(ours, theirs):
        print(f"epoch {o['epoch']}: {field} {o[field]:.6f}, PyTorch {t[field]:.6f}, "
              f"difference {100 * abs(o[field] / t[field] - 1):.4f} %")
        assert o[field] == pytest.approx(t[field], rel=0.005)


def test_accuracy(losses):
    ours, theirs = losses
    assert ours[-1]["test_accuracy"] == pytest.approx(theirs[-1]["test_accuracy"], abs=0.01)


def test_the_snapshot_opens_in_pytorch(tmp_path):
    """Stock safetensors; the parameters and statistics in the PyTorch network give the same accuracy."""
    import torch
    from safetensors import safe_open

    import torch_mnist
    import torch_trainer

    metrics = tmp_path / "m"
    p = jobs.run(jobs.train_job(2, "--limit", "3200", "--epochs", "1", "--snapshot-dir", tmp_path, "--metrics", metrics))
    assert p.returncode == 0, p.stderr
    with safe_open(str(sorted(tmp_path.glob("snap-*.safetensors"))[-1]), "pt") as f:
        tensors = {name: f.get_tensor(name) for name in f.keys()}
        assert f.metadata()["epoch"] == "1"
    net = torch_mnist.Net()
    state = {n.split(".", 1)[1]: t for n, t in tensors.items() if n.startswith(("model.", "buffer."))}
    assert set(net.state_dict()) == set(state)
    net.load_state_dict(state)
    x = torch_mnist.images_as_input(torch_mnist.read_idx(torch_mnist.FASHION_MNIST, "t10k-images-idx3-ubyte"))
    y = torch.from_numpy(torch_mnist.read_idx(torch_mnist.FASHION_MNIST, "t10k-labels-idx1-ubyte").astype("int64"))
    epochs, _ = jobs.read_metrics(metrics)
    assert torch_trainer.count_correct(net, x, y) == pytest.approx(epochs[-1]["test_accuracy"], abs=2e-4)


def test_a_saved_model_is_a_state_dict(tmp_path):
    """--save-model: stock safetensors whose names are the PyTorch network's own."""
    from safetensors.torch import load_file

    import torch_classifier
    import torch_trainer

    p = jobs.run(jobs.train_job(2, "--save-model", tmp_path / "model", "--metrics", tmp_path / "m",
                                program="classifier"))
    assert p.returncode == 0, p.stderr
    net = torch_classifier.make_net()
    net.load_state_dict(load_file(tmp_path / "model"))
    x, y = (part[torch_classifier.N_TRAINING :] for part in torch_classifier.make_samples())
    epochs, _ = jobs.read_metrics(tmp_path / "m")
    assert torch_trainer.count_correct(net, x, y) == pytest.approx(epochs[-1]["test_accuracy"], abs=1e-9)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["m", "model"]  # no temporary is left
