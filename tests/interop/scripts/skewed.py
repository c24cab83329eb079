"""Crashes in its first attempt; in its second, rank 1 comes SKEW seconds late, and rank 0 meets whatever the first
attempt left in the store. torchrun 2.13 keeps the store of the first attempt: rank 0 reads stale addresses there.

    torchrun --nproc-per-node=2 --max-restarts=1 skewed.py SKEW
"""

import os
import sys
import time

import torch.distributed as dist

rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if attempt == 1 and rank == 1:
    time.sleep(float(sys.argv[1]))
dist.init_process_group("gloo")
dist.barrier()
if attempt == 0:
    os._exit(1)
dist.destroy_process_group()
