#!/usr/bin/env python3
"""Writes the seeds of fuzz_session: conversations of agents with the rounds, as records.

    tests/fuzz/make_session_seeds.py          (tests/fuzz/seeds/fuzz_session is rewritten)
"""

import json
import pathlib
import shutil
import struct

SAY, BEGIN, FRAME, CLOSE, FRAME_DEAF = range(5)
PARAMS = {"min_nodes": 2, "max_nodes": 2, "max_restarts": 1, "max_changes": 5, "join_timeout_ms": 60000, "last_call_ms": 0,
          "node_timeout_ms": 1000}
READY = {"phase": "ready", "port": 40000}
CAUSE = {"kind": "worker", "rank": 1, "local_rank": 0, "exit_code": -9, "pid": 5}


def record(connection, what, data=b""):
    data = json.dumps(data, separators=(",", ":")).encode() if isinstance(data, dict) else data
    return struct.pack("<BH", what * 8 + connection, len(data)) + data


def hello(node, attempt=1, report=READY, **more):
    return {"hello": 1, "job": "j", "nonce_high": "%016x" % node, "nonce_low": "%016x" % 7, "attempt": attempt, "host": f"n{node}",
            "workers": 2, "params": PARAMS, "report": report, **more}


def join(connection, node, **more):
    return record(connection, BEGIN) + record(connection, FRAME, hello(node, **more))


def report(connection, phase, generation=0, **more):
    return record(connection, FRAME, {"report": {"phase": phase, "generation": generation, **more}})


pair = join(0, 1) + join(1, 2)
SEEDS = {
    "pair": pair,
    "success": pair + report(0, "done") + report(1, "done"),
    "failure": pair + report(0, "failed", cause=CAUSE) + report(1, "stopping") + report(1, "ready") + report(0, "ready"),
    "leave": pair + report(0, "left", cause={"kind": "left", "text": "bye"}) + report(1, "ready"),
    "return": pair + record(0, CLOSE) + join(2, 1, attempt=2, report={"phase": "running", "generation": 0}),
    "replaced": pair + join(2, 1, attempt=2) + join(3, 1, attempt=1),
    "jobs": pair + join(2, 3, job="k") + join(3, 4, job="l") + join(4, 5, job="m"),
    "crowd": pair + join(2, 3) + join(3, 4) + join(4, 5),
    "refused": pair + join(2, 3, params={**PARAMS, "max_restarts": 2}) + join(3, 4, hello=2),
    "spare": pair + join(2, 3) + report(1, "left") + report(2, "ready", -1),
    "drain": pair + report(0, "running", drain=True) + report(0, "done") + report(1, "done"),
    "stop": pair + join(2, 3) + report(0, "left", stop_signal=15) + report(1, "failed"),
    "alive": pair + record(0, FRAME) + record(1, FRAME),
    "relay": (join(0, 1) + join(1, 2) + report(0, "running", quiet=True) + report(1, "running", quiet=True)
              + b"".join(record(i % 2, FRAME, {"relay": to, "generation": 0, "hang": {"text": "x" * 300}}) for i, to in enumerate((0, 1, -1, 7) * 40))),
    "deaf": record(0, BEGIN) + record(0, FRAME_DEAF, hello(1)) + b"".join(record(0, FRAME, {"report": READY}) for _ in range(9)),
    "store": record(0, SAY, bytes.fromhex("00cef7853c0d07000000")) + record(0, SAY, b"\x03" + struct.pack("<Q", 2) + b"/a") + join(1, 1),
    "version": record(0, SAY, bytes.fromhex("00cef7853c0d07000000") + b"\xc5crun/2\n"),
    "long": record(0, BEGIN, struct.pack("<I", 16385)),
    "half": record(0, BEGIN, struct.pack("<I", 300) + b"{") + record(0, SAY, b'"hello"') + record(0, CLOSE),
}

folder = pathlib.Path(__file__).resolve().parent / "seeds" / "fuzz_session"
shutil.rmtree(folder, ignore_errors=True)
folder.mkdir(parents=True)
for name, data in SEEDS.items():
    (folder / name).write_bytes(data)
print(f"{len(SEEDS)} seeds in {folder.name}")
