"""@record around a main that raises in one rank, while the others wait."""

import os
import sys
import time

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main(culprit="1", what="ValueError"):
    if os.environ["RANK"] == culprit:
        if what == "exit":
            sys.exit(9)
        raise {"ValueError": ValueError, "MemoryError": MemoryError}[what](f"boom in rank {culprit}\nand a second line")
    time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
