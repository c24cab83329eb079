#!/usr/bin/env python3
"""What encryption of the data between hosts costs: all_reduce of libcrw's ranks on two hosts with and without CRW_ENCRYPT.

    encrypt_bench.py [--sizes 4,32768,900904,26000000] [--rounds 5] [--ranks 1]

Both hosts are this machine, over its loopback interface: no network is faster, so none shows a larger difference. The rounds are
run in turn, and the figures are the medians of their medians. Prints for each size the time and the bandwidth of both,
and the bandwidth with encryption in units of that without. Never fails a build."""

import argparse
import json
import pathlib
import re
import statistics
import sys
import tempfile

import jobs
import nodes as lib

SIZES = "4,32768,900904,26000000"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=SIZES, help="bytes, comma-separated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=1, help="of each host")
    return parser.parse_args()


def run_round(args, folder, number, encrypts):
    """{bytes: median time in us}"""
    endpoint = f"127.0.0.1:{lib.free_port()}"
    with lib.Nodes(folder) as nodes:
        for _ in range(2):
            nodes.crun("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}",
                       f"--rdzv-id=bench{number}", "--seal", f"--secret-file={folder / 'secret'}", f"--nproc-per-node={args.ranks}",
                       jobs.collectives(), "allreduce", "shared", args.sizes, env={"CRW_ENCRYPT": str(int(encrypts))})
        codes, text = nodes.codes(), "".join(nodes.texts())
    lines = [json.loads(line) for line in re.findall(r'\{"collective.*\}', text)]
    if codes != [0, 0] or not lines:
        raise SystemExit(text)
    return {line["bytes"]: line["time_us"] for line in lines}


def main():
    args = arguments()
    times = {False: [], True: []}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        secret = folder / "secret"
        secret.write_bytes(b"a secret of the benchmark, long enough")
        secret.chmod(0o600)
        for i in range(2 * args.rounds):
            times[i % 2 == 1].append(run_round(args, folder, i, i % 2 == 1))
    print(f"{'bytes':>10} {'clear us':>10} {'encrypted us':>13} {'clear GB/s':>11} {'encrypted GB/s':>15} {'ratio':>6}")
    for size in times[False][0]:
        clear, encrypted = (statistics.median(t[size] for t in times[kind]) for kind in (False, True))
        print(f"{size:>10} {clear:>10.1f} {encrypted:>13.1f} {size / clear / 1e3:>11.2f} {size / encrypted / 1e3:>15.2f} "
              f"{clear / encrypted:>6.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
