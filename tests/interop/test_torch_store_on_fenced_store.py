"""PyTorch's own TCPStore client against the fenced store of a job of two nodes: all of what crund's is tested for."""

import pytest

import job_store
from test_torch_store_on_crund import *  # noqa: F401,F403 - the tests; the fixture below takes the place of theirs


@pytest.fixture
def crund(build, tmp_path):
    with job_store.job_store("fenced", tmp_path) as store:
        yield store
