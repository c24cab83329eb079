"""NCCL's RAS service (src/ras/client_support.cc of NCCL): answers as three versions of NCCL, or as no NCCL answers."""

import contextlib
import json
import socket
import threading
import time

KINDS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
TEXT = "NCCL version 2.27.3 compiled with CUDA 12.9\n\nJob summary\n  (0 nodes)\n"


def rank(number, pid, counts, host="10.0.0.1"):
    return {"rank": number, "host": host, "pid": pid, "cuda_dev": number, "nvml_dev": number,
            "status": {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False,
                       "abort_flag": False},
            "collective_counts": dict(zip(KINDS, counts))}


def missing(number, pid, host="10.0.0.1", unresponsive=True):
    return {"rank": number, "host": host, "pid": pid, "cuda_dev": number, "nvml_dev": number,
            "status": {"unresponsive": unresponsive, "considered_dead": False}}


def communicator(mark, ranks, missing_ranks=()):
    return {"hash": mark, "secondary_hash": "0x1:0x2", "size": len(ranks) + len(missing_ranks),
            "ranks_count": len(ranks), "missing_ranks_count": len(missing_ranks), "ranks": ranks,
            "missing_ranks": list(missing_ranks)}


def document(version, communicators):
    """In the layout of NCCL. Version 2.28 leaves out a comma behind nvml_dev of a missing rank."""
    text = json.dumps({"nccl_version": version, "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
                       "timestamp": "2026-01-01 00:00:00", "communicators_count": len(communicators),
                       "communicators": communicators,
                       "ras": {"collection_time_sec": 0.001, "timeouts_count": 0}}, indent=2)
    if version.startswith("2.28."):
        lines = text.split("\n")
        for i, line in enumerate(lines[:-2]):
            if '"nvml_dev"' in line and '"unresponsive"' in lines[i + 2]:
                lines[i] = line.rstrip(",")
        text = "\n".join(lines)
    return text + "\n"


class Ras(threading.Thread):
    """answer: a document, as JSON; None: NCCL before 2.28, which has text alone; or "slow", "deep", "huge"."""

    def __init__(self, answer=None):
        super().__init__(daemon=True)
        self.answer = answer
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"localhost:{self.server.getsockname()[1]}"
        self.requests = []
        self.start()

    def close(self):
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()

    def run(self):
        while True:
            try:
                client = self.server.accept()[0]
            except OSError:
                return  # closed
            threading.Thread(target=self.serve, args=[client], daemon=True).start()

    def serve(self, client):
        with client, client.makefile("rb") as lines, contextlib.suppress(OSError):  # crun may end the connection
            as_json = False
            for line in lines:
                self.requests.append(line.decode().strip())
                if line == b"verbose status\n":
                    for part in self.parts() if as_json else [TEXT]:
                        client.sendall(part.encode())
                    return
                as_json = line == b"set format json\n" and self.answer is not None
                client.sendall(b"OK\n" if as_json else b"ERROR: Unknown command " + line)

    def parts(self):
        if self.answer == "slow":
            while True:
                yield "{"
                time.sleep(0.05)
        if self.answer == "deep":
            yield '{"communicators": ' + "[" * (1 << 20)
        elif self.answer == "huge":
            yield '{"communicators": ['
            for _ in range(1 << 10):
                yield '{"ranks": [{}]},' * (1 << 12)  # 64 KiB
        else:
            yield self.answer
