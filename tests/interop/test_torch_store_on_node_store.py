"""PyTorch's own TCPStore client against the store of a node that forwards to another node's: all of what crund's is tested for."""

import pytest

import job_store
from test_torch_store_on_crund import *  # noqa: F401,F403 - the tests; the fixture below takes the place of theirs


@pytest.fixture
def crund(build, tmp_path):
    """Two nodes of a sealed job on this machine; the port of the store of the one that does not keep the keys."""
    with job_store.job_store("sealed", tmp_path) as store:
        yield store
