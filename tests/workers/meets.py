"""A worker that connects to its store, and says where that was."""

import os
import socket


def tell(*words):
    """In one piece: the other workers and crun write to the same file, and print() writes each word by itself."""
    os.write(1, " ".join(map(str, ("RANK", os.environ["RANK"], *words))).encode() + b"\n")


at = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
try:
    socket.create_connection(at, 10).close()
    tell("MET AT", *at)
except OSError as error:
    tell("CANNOT REACH", *at, error)
    raise SystemExit(1)
