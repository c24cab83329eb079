"""PyTorch's TCPStore server by itself: prints its port, ends when its standard input does.

    torch_server.py PORT libuv|legacy            port 0: any
"""

import sys

from torch.distributed import TCPStore

store = TCPStore("127.0.0.1", int(sys.argv[1]), None, True, wait_for_workers=False,
                 use_libuv=sys.argv[2] == "libuv")
print(store.port, flush=True)
sys.stdin.read()
