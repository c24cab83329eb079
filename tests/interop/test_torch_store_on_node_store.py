"""PyTorch's own TCPStore client against the store of a node that forwards to another node's: all of what crund's is tested for."""

import re

import pytest

import nodes as lib
from test_torch_store_on_crund import *  # noqa: F401,F403 - the tests; the fixture below takes the place of theirs


class NodeStore:
    def __init__(self, port, nodes, end):
        self.port, self.nodes, self.end = port, nodes, end

    def log(self):
        return "".join(self.nodes.texts())

    def stop(self):
        self.end.touch()
        return max(self.nodes.codes())


@pytest.fixture
def crund(build, tmp_path, monkeypatch):
    """Two nodes of a sealed job on this machine; the port of the store of the one that does not keep the keys."""
    secret, end = tmp_path / "secret", tmp_path / "end"
    secret.write_bytes(b"a secret of the tests, long enough")
    secret.chmod(0o600)
    wait = f'echo "STORE $GROUP_RANK $MASTER_PORT."; until [ -e {end} ]; do sleep 0.05; done'
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        for _ in range(2):
            nodes.crun("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=sealed", "--seal",
                       f"--secret-file={secret}", "--rdzv-conf=node_timeout_ms=10000", "--no-python", "sh", "-c", wait)
        for node in nodes:
            node.wait_for(".\n")
        ports = dict(re.findall(r"STORE (\d) (\d+)\.", "".join(nodes.texts())))
        assert ports["0"] != ports["1"]
        store = NodeStore(int(ports["1"]), nodes, end)
        yield store
        assert store.stop() == 0, nodes.texts()
