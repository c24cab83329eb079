"""The soak test fuzz: tests/soak fuzz [SECONDS [TARGET...]]. Each target for that long, one after another.

Builds with clang into build-fuzz (CRUN_FUZZ_BUILD). What a run finds interesting stays in corpus/TARGET there, and
the next one starts from it; what crashes a target stays in findings/TARGET. Prints executions and findings.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CRUN_FUZZ_BUILD", ROOT / "build-fuzz"))
SEEDS = ROOT / "tests" / "fuzz" / "seeds"
OPTIONS = ["-Dtests=enabled", "-Dfuzz=enabled", "-Dbuildtype=debugoptimized", "-Dcuda=disabled", "-Db_lundef=false"]
SANITIZERS = {
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=1:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
}


def all_targets():
    return sorted(p.stem for p in (ROOT / "tests" / "fuzz").glob("fuzz_*.c"))


def build(targets):
    if not (BUILD / "build.ninja").exists():
        subprocess.run(["meson", "setup", str(BUILD), *OPTIONS], cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
                       env=dict(os.environ, CC="clang", CXX="clang++"))
    subprocess.run(["ninja", "-C", str(BUILD), "--quiet", *(f"tests/fuzz/{t}" for t in targets)], check=True)


def fuzz(target, seconds):
    """(executions, coverage, files of findings)"""
    corpus, findings = BUILD / "corpus" / target, BUILD / "findings" / target
    shutil.rmtree(findings, ignore_errors=True)
    for folder in (corpus, findings):
        folder.mkdir(parents=True, exist_ok=True)
    seeds = [str(SEEDS / target)] if (SEEDS / target).is_dir() else []
    p = subprocess.run([str(BUILD / "tests" / "fuzz" / target), f"-max_total_time={seconds}", "-timeout=20",
                        "-rss_limit_mb=4096", "-print_final_stats=1", f"-artifact_prefix={findings}/", str(corpus), *seeds],
                       env=dict(os.environ, **SANITIZERS), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                       errors="replace")
    executions = re.search(r"number_of_executed_units: (\d+)", p.stdout)
    coverage = re.findall(r"cov: (\d+)", p.stdout)
    found = sorted(findings.iterdir())
    if p.returncode != 0 or not executions:
        print(p.stdout[-3000:])
        found = found or [findings]
    return int(executions.group(1)) if executions else 0, int(coverage[-1]) if coverage else 0, found


def main():
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 600
    targets = sys.argv[2:] or all_targets()
    unknown = set(targets) - set(all_targets())
    if unknown:
        print(f"no fuzz target named {unknown.pop()}; there are {', '.join(all_targets())}", file=sys.stderr)
        return 2
    build(targets)
    total, total_found = 0, 0
    for target in targets:
        executions, coverage, found = fuzz(target, seconds)
        total, total_found = total + executions, total_found + len(found)
        print(f"{target}: {executions} executions in {seconds} s, {coverage} edges covered, {len(found)} findings", flush=True)
        for path in found:
            print(f"  {path}")
    print(f"all: {total} executions, {total_found} findings")
    return 1 if total_found else 0


if __name__ == "__main__":
    sys.exit(main())
