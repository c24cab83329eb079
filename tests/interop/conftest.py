"""What the tests against PyTorch share.

    CRUN_BUILD           the build directory whose programs are tested (./build)
    CRUN_TESTS_STRICT=1  a test that cannot run fails instead of being skipped
"""

import os

import pytest

import jobs
from strict import skip

# Threads of PyTorch that wait for work spin otherwise, on cores that other tests want.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@pytest.fixture(scope="session")
def build():
    """The build directory, as a pathlib.Path."""
    path = jobs.build_folder()
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
