"""Runs commands, counts what passed and failed, and decides what is run a second time."""

import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import typing
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
RERUNS = 2  # at most, for one test
WAITING = 5  # processes of pytest at a time, for tests that mostly wait: a quarter of a core each
COMPUTING = 3  # and for those that start PyTorch: a core each
# The test files of more than 40 s, longest first, as the line "... s, ... s" below each count shows them: begun last, one of them
# would run by itself at the end.
LONGEST = (
    "test_crun_hang", "test_stragglers", "test_train_vs_torch", "test_torch_in_place", "test_torch_scripts", "test_torchrun", "test_cut",
    "test_jobs_on_crund", "test_crun_warm", "test_crun_leaving", "test_rounds_etcd", "test_crun_signals", "test_gpu_run",
    "test_train_gpu", "test_crun_output", "test_client_vs_torch", "test_munge", "test_crunctl", "test_crun", "test_crun_nodes",
    "test_certificates", "test_lease", "test_static_nodes", "test_wheel",
)
# Test programs of Meson at a time: the longest wait for time-outs.
TEST_PROGRAMS = (os.cpu_count() or 1) + 2


class Allowed(typing.NamedTuple):
    """A known fault of a program that is not ours: a test that fails because of it may run again."""
    name: str
    output: str  # is in the output of the failed test
    reason: str


# A test that fails for any other reason has failed: that it passes when run again would hide a fault.
ALLOWED = [
    Allowed("gloo-abort", "terminate called without an active exception",
            "PyTorch's gloo aborts the process in destroy_process_group"),
]

passed = 0
failures = []
reruns = []  # (name of the test, Allowed)


class Result(typing.NamedTuple):
    name: str
    ok: bool
    output: str
    case: str = ""  # what runs it by itself
    seconds: float = 0


def count(name, ok, output=""):
    global passed
    if ok:
        passed += 1
    else:
        failures.append(name)
        print(f"FAILED {name}\n{output[-6000:]}", flush=True)


def allowed(output):
    return next((known for known in ALLOWED if known.output in output), None)


def count_all(results, again):
    """again(result) runs that test by itself and returns (ok, output)."""
    for result in results:
        ok, output = result.ok, result.output
        for _ in range(RERUNS):
            known = None if ok else allowed(output)
            if not known:
                break
            reruns.append((result.name, known))
            print(f"RERUN {result.name}: {known.reason}\n{output[-3000:]}", flush=True)
            ok, output = again(result)
        count(result.name, ok, output)


def close():
    """Prints the closing lines; the exit code."""
    for name in failures:
        print(f"FAILED {name}")
    named = "; ".join(f"{name}, {known.name}: {known.reason}" for name, known in reruns)
    print(f"{len(reruns)} re-runs" + (f": {named}" if named else ""))
    print(f"{passed} passed, {len(failures)} failed")
    return 1 if failures or not passed else 0


def run(args, env=None, timeout=900):
    """(exit code, output, seconds)"""
    started = time.monotonic()
    try:
        p = subprocess.run(
            args, cwd=ROOT, env=dict(os.environ, **(env or {})), timeout=timeout,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )
        return p.returncode, p.stdout, time.monotonic() - started
    except subprocess.TimeoutExpired as e:
        out = e.stdout or b""
        return 124, out.decode(errors="replace") + f"\ntimed out after {timeout} s", time.monotonic() - started


# ---- meson test

def meson_results(folder, args, env):
    """Runs meson test; its Results, or None when no test is selected."""
    log = folder / "meson-logs" / "testlog.json"
    log.unlink(missing_ok=True)
    code, out, _ = run(["meson", "test", "-C", str(folder), "--no-rebuild", "--print-errorlogs",
                        "--timeout-multiplier=3", f"--num-processes={TEST_PROGRAMS}", *args], env)
    if not log.exists():
        if "No suitable tests defined" in out or "no tests" in out.lower():
            return None
        return [Result(f"{folder.name}: meson test", code == 0, out)]
    results = []
    for line in log.read_text(errors="replace").splitlines():
        t = json.loads(line)
        output = (t.get("stdout") or "") + (t.get("stderr") or "")
        if t["result"] == "SKIP":
            print(f"skipped {t['name']}: {output.strip()[-200:]}")
            continue
        results.append(Result(f"{folder.name}: {t['name']}", t["result"] in ("OK", "EXPECTEDFAIL"), output,
                              t["name"].split(" / ")[-1].split(":")[-1]))
    return results


def meson_names(folder):
    """The tests of a build folder, as `meson test` takes them."""
    code, out, _ = run(["meson", "introspect", str(folder), "--tests"])
    return sorted({t["name"] for t in json.loads(out)}) if code == 0 else []


def meson_tests(folder, suites=(), env=None, names=()):
    started = time.monotonic()
    options = list(names) + [a for suite in suites for a in ("--suite", suite)]
    results = meson_results(folder, options, env)
    if results is None:
        return

    def again(result):
        second = meson_results(folder, [result.case], env) or []
        return bool(second) and all(r.ok for r in second), "".join(r.output for r in second)

    count_all(results, again)
    print(f"{folder.name}: {len(results)} test programs in {time.monotonic() - started:.1f} s", flush=True)


# ---- pytest

class Interpreter:
    """The Python that has what the tests import. Where it is missing it is made by a thread: pip takes minutes."""

    def __init__(self):
        self.pool = concurrent.futures.ThreadPoolExecutor(1)
        self.running = None

    def prepare(self):
        self.running = self.running or self.pool.submit(run, ["tests/tools/python"], None, 1800)

    def get(self):
        """Its name. Without one no test of Python can run, so that this ends the program."""
        self.prepare()
        code, out, _ = self.running.result()
        if code:
            sys.exit(f"tests/tools/python: {out}")
        return out.splitlines()[-1]


interpreter = Interpreter()


def pytest_results(folder, what, env, timeout):
    """Runs pytest on paths or single cases; (its Results, its output)."""
    with tempfile.TemporaryDirectory() as tmp:
        report = pathlib.Path(tmp) / "report.xml"
        args = [interpreter.get(), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5", "-rs",
                "-o", "verbosity_assertions=2",  # logs and output whole, which is all that is left of a failure
                f"--junitxml={report}", *what]
        _, out, _ = run(args, dict(env or {}, CRUN_BUILD=str(folder), PYTHONDONTWRITEBYTECODE="1"), timeout)
        if not report.exists():
            return [Result(f"pytest {' '.join(what)}", False, out)], out
        results = []
        for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
            kinds = {child.tag: child for child in case}
            name = f"{folder.name}: {case.get('classname')}.{case.get('name')}"
            if "skipped" in kinds:
                print(f"skipped {name}: {kinds['skipped'].get('message')}")
                continue
            bad = kinds.get("failure", kinds.get("error"))
            results.append(Result(name, bad is None, "" if bad is None else (bad.text or ""),
                                  f"{case.get('classname').replace('.', '/')}.py::{case.get('name')}", float(case.get("time"))))
        return results, out


def files_of(paths):
    """These test files, and those in these folders: LONGEST, then the larger ones first."""
    files = {f for path in paths for f in ((ROOT / path).glob("test_*.py") if (ROOT / path).is_dir() else ROOT.glob(path))}

    def turn(file):
        return LONGEST.index(file.stem) if file.stem in LONGEST else len(LONGEST), -file.stat().st_size
    return [str(f.relative_to(ROOT)) for f in sorted(files, key=turn)]


def pytest(folder, paths, at_once, env=None, markers=None, timeout=1800):
    """Runs files, and all files of folders, so many at a time."""
    started = time.monotonic()
    more = ["-m", markers] if markers else []
    files = files_of(paths)
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        parts = list(pool.map(lambda file: pytest_results(folder, [file, *more], env, timeout), files))
    results = [r for part, _ in parts for r in part]
    out = "\n".join(text for _, text in parts)

    def again(result):
        if not result.case:
            return False, result.output
        second, text = pytest_results(folder, [result.case], env, timeout)
        return bool(second) and all(r.ok for r in second), "".join(r.output for r in second) or text

    count_all(results, again)
    print(f"{folder.name}: {len(results)} cases of {' '.join(paths)} in {time.monotonic() - started:.1f} s", flush=True)
    seconds = sorted(((sum(r.seconds for r in part), file) for (part, _), file in zip(parts, files)), reverse=True)
    print("    " + ", ".join(f"{pathlib.Path(file).stem} {total:.0f} s" for total, file in seconds[:12]))
    for line in re.findall(r"^.*\bseed \d+: .*$", out, re.M):
        print("   ", line)
    slowest = [line for line in out.splitlines() if re.match(r"^\d+\.\d+s (call|setup)", line)]
    for line in sorted(slowest, key=lambda line: -float(line.split("s ")[0]))[:10]:
        print("   ", line)
