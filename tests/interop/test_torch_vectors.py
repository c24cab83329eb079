"""The committed vectors of the unit tests are what the PyTorch beside us computes."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
HEADER = HERE.parent / "unit" / "worker-runtime" / "torch_vectors.h"

pytest.importorskip("torch")

NUMBER = re.compile(r"-?\d+\.?\d*(?:e[-+]?\d+)?f\b|NAN")


def split(text):
    """The text with its floats taken out, and the floats."""
    return NUMBER.sub("#", text).split(), [float(n.rstrip("f")) for n in NUMBER.findall(text)]


def test_header_is_what_pytorch_computes():
    fresh = subprocess.run(
        [sys.executable, str(HERE / "torch_vectors.py")], check=True, capture_output=True, text=True, timeout=120
    ).stdout
    # What is promised to the last bit is in the text as checksums; sums of networks depend on the processor.
    text, floats = split(fresh)
    committed_text, committed_floats = split(HEADER.read_text())
    assert text == committed_text
    for a, b in zip(floats, committed_floats, strict=True):
        assert abs(a - b) <= 2e-3 * (1 + abs(b))


def test_adamw_of_an_untouched_pytorch_is_near():
    """MKL's square root may be one unit off: then PyTorch's own steps are, too, and not by more."""
    import torch

    spec = importlib.util.spec_from_file_location("torch_vectors", HERE / "torch_vectors.py")
    vectors = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(vectors)
    exact, _ = vectors.run_optimizer(torch.optim.AdamW, dict(lr=1e-2), 4099, 5)
    p = torch.nn.Parameter(vectors.uniform(10, 4099, -1, 1))
    optimizer = torch.optim.AdamW([p], lr=1e-2, foreach=False)
    for step in range(5):
        p.grad = vectors.uniform(11 + step, 4099, -1, 1)
        optimizer.step()
    assert (p.detach() - exact).abs().max() <= 1e-7
