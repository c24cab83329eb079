"""PyTorch's own TCPStore client against the store of a job on one node, which serves the own user alone: all of what crund's is tested for."""

import pytest

import job_store
from test_torch_store_on_crund import *  # noqa: F401,F403 - the tests; the fixture below takes the place of theirs


@pytest.fixture
def crund(build, tmp_path):
    with job_store.job_store("standalone", tmp_path) as store:
        yield store


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_connects(connect, host):
    """It listens on loopback of IPv4 alone."""
    store = connect(host)
    store.set("k", "v")
    assert store.get("k") == b"v"
