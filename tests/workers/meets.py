"""A worker that connects to its store, and says where that was."""

import os
import socket

at = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
try:
    socket.create_connection(at, 10).close()
    print("RANK", os.environ["RANK"], "MET AT", *at, flush=True)
except OSError as error:
    print("RANK", os.environ["RANK"], "CANNOT REACH", *at, error, flush=True)
    raise SystemExit(1)
