"""The worker store of a running job, in each of the modes that it has, as a client of one of its workers reaches it."""

import contextlib
import re

import nodes as lib
from job_secret import write_secret

MODES = ("standalone", "fenced", "sealed")


class JobStore:
    def __init__(self, port, nodes, end):
        self.port, self.nodes, self.end = port, nodes, end

    def log(self):
        return "".join(self.nodes.texts())

    def stop(self):
        self.end.touch()
        return max(self.nodes.codes())


def options(mode, tmp_path, port, job="job"):
    """Of each node of a job in that mode."""
    if mode == "standalone":
        return ["--standalone", "--security=require"]
    secret = tmp_path / "secret"
    if not secret.exists():  # or the next node would cut it while the first one reads it
        write_secret(secret)
    return ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id={job}",
            f"--secret-file={secret}", "--security=require",
            *(["--seal"] if mode == "sealed" else [])]


@contextlib.contextmanager
def job_store(mode, tmp_path):
    """With two nodes on this machine: the port that workers of the one get that does not keep the keys."""
    end = tmp_path / "end"
    wait = f'echo "STORE $GROUP_RANK $MASTER_PORT."; until [ -e {end} ]; do sleep 0.05; done'
    port = lib.free_port()
    n_nodes = 1 if mode == "standalone" else 2
    with lib.Nodes(tmp_path) as nodes:
        for _ in range(n_nodes):
            nodes.crun(*options(mode, tmp_path, port), "--no-python", "sh", "-c", wait)
        for node in nodes:
            node.wait_for(".\n")
        ports = dict(re.findall(r"STORE (\d) (\d+)\.", "".join(nodes.texts())))
        assert mode != "sealed" or ports["0"] != ports["1"]
        store = JobStore(int(ports[str(n_nodes - 1)]), nodes, end)
        yield store
        assert store.stop() == 0, nodes.texts()
