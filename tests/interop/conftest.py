"""What the tests against PyTorch share.

    CRUN_BUILD           the build directory whose programs are tested (./build)
    CRUN_TESTS_STRICT=1  a test that cannot run fails instead of being skipped
"""

import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
import jobs
from strict import skip


@pytest.fixture(autouse=True)
def not_for_ever():
    yield from jobs.within(240)


@pytest.fixture(scope="session")
def build():
    """The build directory, as a pathlib.Path."""
    path = pathlib.Path(os.environ.get("CRUN_BUILD", ROOT / "build")).resolve()
    if not (path / "build.ninja").exists():
        skip(f"{path} is no build directory: meson setup, or set CRUN_BUILD")
    return path


@pytest.fixture(scope="session")
def torch_distributed():
    """The module torch.distributed."""
    try:
        import torch.distributed
    except ImportError as error:
        skip(f"PyTorch is not installed: {error}")
    return torch.distributed
