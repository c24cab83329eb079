"""tests/gpu/run without a GPU, under the limits of the machine that has one: prepare and both calls on an emulated card, and the first
call on drivers that cannot be used. Prints seconds, bytes and the first line of each report."""

import argparse
import json
import pathlib
import sys
import tempfile
import time

import gpu_calls as rehearsal


def make_tree(folder, *args):
    tree = folder / "tree"
    tree.mkdir()
    rehearsal.copy_tree(tree)
    began = time.monotonic()
    print(rehearsal.prepare(tree, *args), end="")
    n_bytes = rehearsal.tree_bytes(tree)
    print(f"prepared in {time.monotonic() - began:.0f} s; {n_bytes / 2**20:.1f} MiB travel")
    assert n_bytes <= rehearsal.LIMIT_BYTES
    return tree


def rehearse_call(tree, folder, name, nccl):
    reports, environment = folder / name, rehearsal.emulated_card(folder / f"scratch-{name}")
    code, output, seconds = rehearsal.call(tree, name, reports, {**environment, "FAKE_NCCL_VERSION": nccl})
    print(output)
    report = json.loads((reports / f"{name}.json").read_text())
    print(f"{seconds:.0f} s; files: {', '.join(f'{f.name} {f.stat().st_size}' for f in sorted(reports.iterdir()))}")
    print("parts:", report["parts"], "did not get their turn:", report["fallen"], flush=True)
    return code == 0 and seconds <= rehearsal.LIMIT_S and all(r["ok"] or r["why"] for r in report["results"])


def rehearse_card(folder):
    """Both calls, each part on the emulation or skipped with its reason: with PyTorch's NCCL, and with one that was carried."""
    tree = make_tree(folder, "--emulated")
    return all([rehearse_call(tree, folder, name, nccl) for name, nccl in (("first-quarter", "22809"), ("second-call", "23007"))])


def rehearse_drivers(folder):
    """The call ends at the gate, and the first line of the report is the reason."""
    tree, good = make_tree(folder), True
    for kind, reason in rehearsal.DRIVERS.items():
        environment, reports = rehearsal.broken_driver(folder / kind, kind), folder / f"reports-{kind}"
        code, _, seconds = rehearsal.call(tree, "first-quarter", reports, environment, limit_s=60)
        line = rehearsal.first_line(reports, "first-quarter")
        print(f"driver {kind}: {seconds:.1f} s: {line}", flush=True)
        good = good and code == 1 and seconds <= rehearsal.GATE_S and reason in line
    return good


def main():
    p = argparse.ArgumentParser()
    p.add_argument("what", nargs="*", choices=[[], "card", "drivers"])
    a = p.parse_args()
    rehearsals = {"card": (rehearse_card, rehearsal.why_not_emulated()), "drivers": (rehearse_drivers, rehearsal.why_no_plugin())}
    good = True
    for name in a.what or rehearsals:
        rehearse, why_not = rehearsals[name]
        if why_not:
            sys.exit(f"gpu_rehearsal: {name}: {why_not}")
        with tempfile.TemporaryDirectory() as folder:
            good = rehearse(pathlib.Path(folder)) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
