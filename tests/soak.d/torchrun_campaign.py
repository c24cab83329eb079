"""The comparison of crun with torchrun as a whole (tests/soak torchrun): every row, a table, a count."""

import argparse
import collections
import concurrent.futures
import pathlib
import re
import sys
import tempfile
import time

import torch
import torch.distributed.run

import launcher_compare
import launcher_pair
import torchrun_parser
import torchrun_runs

Result = collections.namedtuple("Result", "row differences unintended theirs_s ours_s")


def compare_run(row, folder):
    box = launcher_pair.Box(pathlib.Path(folder) / re.sub(r"\W+", "-", row.name))
    box.root.mkdir()
    times = [time.monotonic()]
    theirs = launcher_pair.run_torchrun(row, box)
    times.append(time.monotonic())
    ours = launcher_pair.run_crun(row, box)
    times.append(time.monotonic())
    differences = launcher_compare.compare(row, theirs, ours)
    return Result(row, differences, launcher_compare.unintended(row, differences), times[1] - times[0], times[2] - times[1])


def compare_runs(rows, jobs=2):
    """Yields a Result for each row, `jobs` at once."""
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda row: compare_run(row, folder), rows)


def compare_parsed(row):
    begin = time.monotonic()
    differences = torchrun_parser.compare(torch.distributed.run, row)
    return Result(row, differences, launcher_compare.unintended(row, differences), 0, time.monotonic() - begin)


def complaint(result):
    """What is wrong, in lines; "" when nothing is."""
    return "".join(f"      {d.aspect}\n        torchrun: {d.theirs!r}\n        crun:     {d.ours!r}\n" for d in result.unintended)


def show(result, verbose):
    kind = "WRONG" if result.unintended else "meant" if result.row.differs else "same"
    seconds = f"{result.theirs_s:5.1f} s {result.ours_s:5.2f} s" if result.theirs_s else f"{'parsed':>7} {result.ours_s:5.2f} s"
    print(f"{kind:6}{result.row.name[:60]:62}{seconds}  {', '.join(result.row.differs)}\n{complaint(result)}", end="", flush=True)
    for d in result.differences if verbose else []:
        print(f"      {d.aspect}: torchrun {d.theirs!r}, crun {d.ours!r}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="rows whose name matches this expression")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    runs, parsed = ([row for row in rows if re.search(args.only, row.name)]
                    for rows in (torchrun_runs.ROWS, torchrun_parser.rows(torch.distributed.run)))
    print(f"{'':6}{'command line':62}torchrun    crun  intended differences")
    results = []
    started = time.monotonic()
    for result in compare_runs(runs, args.jobs):
        results.append(result)
        show(result, args.verbose)
    for row in parsed:
        results.append(compare_parsed(row))
        show(results[-1], args.verbose)
    wrong = sum(len(result.unintended) for result in results)
    meant = sum(bool(result.row.differs) for result in results)
    print(f"torchrun {torch.__version__}: {len(results)} command lines in {time.monotonic() - started:.0f} s: {len(runs)} run to the end by both, {len(parsed)} "
          f"read by torchrun and run by crun; {meant} with intended differences; {wrong} unintended differences")
    return 1 if wrong or not results else 0


if __name__ == "__main__":
    sys.exit(main())
