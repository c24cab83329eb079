"""Two nodes of a job on this machine, whose workers wait, and the store that the workers of the second one use."""

import contextlib
import os
import re
import urllib.request

import nodes as lib

WAIT = 'echo "STORE $GROUP_RANK $MASTER_ADDR $MASTER_PORT."; until [ -e "$0" ]; do sleep 0.2; done'


class StoreOfNode:
    """.address of the store, .keeper: the crun of node 0, .other: that of node 1, .metrics_url of that of node 0."""

    def __init__(self, address, keeper, other, metrics_port):
        self.address, self.keeper, self.other = address, keeper, other
        self.metrics_url = f"http://127.0.0.1:{metrics_port}/metrics"

    def share_cores(self, of_node_0, of_node_1):
        """The caller has that of node 1 from now on."""
        for pid, core in (self.keeper.pid, of_node_0), (self.other.pid, of_node_1), (os.getpid(), of_node_1):
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(thread), {core})

    def upstream(self, operation):
        """How many requests of that operation the store at node 0 has executed, of all clients."""
        with urllib.request.urlopen(self.metrics_url, timeout=30) as answer:
            text = answer.read().decode()
        found = re.findall(rf'^crun_store_operations_total{{op="{operation}"}} (\d+)', text, re.M)
        return int(found[0]) if found else 0


@contextlib.contextmanager
def open_store(folder, *options):
    """folder: empty, of the nodes' output. options: of crun, the same for both nodes."""
    port, end = lib.free_port(), folder / "end"
    metrics = [lib.free_port(), lib.free_port()]
    with lib.Nodes(folder) as nodes:
        for metrics_port in metrics:
            nodes.crun("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=local-store",
                       f"--metrics-addr=127.0.0.1:{metrics_port}", *options, "--no-python", "sh", "-c", WAIT, end)
        for node in nodes:
            node.wait_for(".\n")
        found = [re.search(r"STORE (\d) (\S+) (\d+)\.", node.text()).groups() for node in nodes]
        first = [i for i, f in enumerate(found) if f[0] == "0"][0]
        host, store_port = found[1 - first][1:]
        yield StoreOfNode((host, int(store_port)), nodes[first], nodes[1 - first], metrics[first])
        end.touch()
        codes = nodes.codes()
        assert codes == [0, 0], nodes.texts()
