"""Runs every kind of test in turn and adds up what passed and failed.

Steps are independent: a failing one is reported and the next one runs. A build that fails counts as one
failed test. The last line is "N passed, N failed".

A test of processes that fails is run again by itself, up to RERUNS times: this machine may have stood still while it
ran. One that passes then counts as passed, and is named as unsteady with the output of the runs that failed. What a
sanitizer or a fuzzer reports is a finding at once, and more than RETRIES_MAX failures in a group are no accident.
"""

import base64
import concurrent.futures
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
WERROR = os.environ.get("CRUN_TESTS_WERROR", "0") == "1"
FUZZ_SECONDS = int(os.environ.get("CRUN_FUZZ_SECONDS", "10"))
SANITIZER_ENV = {
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=1:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=1:atexit_sleep_ms=50",  # a second where nothing is said, for every process
}

RETRIES_MAX = 3
RERUNS = 2
# Not a leak alone: what a failed assertion jumped over leaks, too.
FINDING = re.compile(r"ERROR: AddressSanitizer|WARNING: ThreadSanitizer|runtime error:")

passed = 0
failed = 0
failures = []
unsteady = []


def count(name, ok, output=""):
    global passed, failed
    if ok:
        passed += 1
    else:
        failed += 1
        failures.append(name)
        print(f"FAILED {name}\n{output[-6000:]}", flush=True)


def count_all(results, again):
    """results: (name, ok, output) of one group; again(name) runs one of them by itself: (ok, output)."""
    n_failed = sum(not ok for _, ok, _ in results)
    for name, ok, output in results:
        failed_runs = []
        while not ok and n_failed <= RETRIES_MAX and len(failed_runs) < RERUNS and not FINDING.search(output):
            failed_runs.append(output[-3000:])
            ok, output = again(name)
        if ok and failed_runs:
            unsteady.append(name)
            shown = "".join(f"\n--- run {i + 1}\n{text}" for i, text in enumerate(failed_runs))
            print(f"UNSTEADY {name}: passed when run again, after{shown}", flush=True)
        count(name, ok, output)


def run(args, env=None, timeout=900):
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


def build(name, options=(), env=None):
    """Configures and builds build-NAME; None when that fails (counted)."""
    folder = ROOT / name
    options = ["-Dtests=enabled", *options, *(["-Dwerror=true"] if WERROR else [])]
    verb = ["--reconfigure"] if (folder / "build.ninja").exists() else []
    code, out, _ = run(["meson", "setup", *verb, str(folder), *options], env)
    if code == 0:
        code, out, seconds = run(["ninja", "-C", str(folder)], env)
        print(f"built {name} in {seconds:.1f} s", flush=True)
    count(f"build {name}", code == 0, out)
    return folder if code == 0 else None


def meson_results(folder, args, env):
    """Runs meson test; [(name, ok, output)], or None when it did not get to run any."""
    log = folder / "meson-logs" / "testlog.json"
    log.unlink(missing_ok=True)
    code, out, _ = run(["meson", "test", "-C", str(folder), "--no-rebuild", "--print-errorlogs",
                        "--timeout-multiplier=3", *args], env)
    if not log.exists():
        return None if "No suitable tests defined" in out or "no tests" in out.lower() else [("run", code == 0, out)]
    results = []
    for line in log.read_text(errors="replace").splitlines():
        t = json.loads(line)
        output = (t.get("stdout") or "") + (t.get("stderr") or "")
        if t["result"] == "SKIP":
            print(f"skipped {t['name']}: {output.strip()[-200:]}")
            continue
        results.append((t["name"], t["result"] in ("OK", "EXPECTEDFAIL"), output))
    return results


def meson_tests(folder, suites=(), env=None):
    started = time.monotonic()
    results = meson_results(folder, [a for suite in suites for a in ("--suite", suite)], env)
    if results is None:
        return

    def again(name):
        second = meson_results(folder, [name.split(" / ")[-1].split(":")[-1]], env) or []
        return bool(second) and all(ok for _, ok, _ in second), "".join(out for _, _, out in second)

    prefix = f"{folder.name}: "
    count_all([(prefix + name, ok, out) for name, ok, out in results], lambda name: again(name.removeprefix(prefix)))
    print(f"{folder.name}: {len(results)} test programs in {time.monotonic() - started:.1f} s", flush=True)


def pytest_results(folder, what, env, timeout):
    """Runs pytest on paths or single cases; ([(name, case, ok, output)], its output)."""
    with tempfile.TemporaryDirectory() as tmp:
        report = pathlib.Path(tmp) / "report.xml"
        args = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5", "-rs",
                f"--junitxml={report}", *what]
        code, out, _ = run(args, dict(env or {}, CRUN_BUILD=str(folder), PYTHONDONTWRITEBYTECODE="1"), timeout)
        if not report.exists():
            return [(f"pytest {' '.join(what)}", None, False, out)], out
        results = []
        for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
            kinds = {child.tag: child for child in case}
            name = f"{folder.name}: {case.get('classname')}.{case.get('name')}"
            if "skipped" in kinds:
                print(f"skipped {name}: {kinds['skipped'].get('message')}")
                continue
            bad = kinds.get("failure", kinds.get("error"))
            case_id = f"{case.get('classname').replace('.', '/')}.py::{case.get('name')}"
            results.append((name, case_id, bad is None, "" if bad is None else (bad.text or "")))
        return results, out


def pytest(folder, paths, env=None, markers=None, timeout=1800):
    started = time.monotonic()
    results, out = pytest_results(folder, [*paths, *(["-m", markers] if markers else [])], env, timeout)
    ids = {name: case_id for name, case_id, _, _ in results}

    def again(name):
        if not ids[name]:
            return False, "there is no single case to run again"
        second, text = pytest_results(folder, [ids[name]], env, timeout)
        return bool(second) and all(ok for _, _, ok, _ in second), text

    count_all([(name, ok, text) for name, _, ok, text in results], again)
    print(f"{folder.name}: {len(results)} cases of {' '.join(paths)} in {time.monotonic() - started:.1f} s", flush=True)
    for line in out.splitlines():
        if re.match(r"^\d+\.\d+s (call|setup)", line):
            print("   ", line)


# ---- steps

def step_release():
    """gcc, release: unit tests, seeds of the fuzzers, then the programs and their real peers."""
    folder = build("build")
    if folder:
        meson_tests(folder)
        pytest(folder, ["tests/integration"])
        pytest(folder, ["tests/interop"])


def step_sanitize():
    """clang, AddressSanitizer and UndefinedBehaviorSanitizer: unit tests, and the marked process tests."""
    clang = {"CC": "clang", "CXX": "clang++"}
    folder = build("build-asan", ["-Db_sanitize=address,undefined", "-Db_lundef=false", "-Dbuildtype=debugoptimized",
                                  "-Dcuda=disabled"], clang)
    if folder:
        meson_tests(folder, env=SANITIZER_ENV)
        pytest(folder, ["tests/integration"], SANITIZER_ENV, markers="sanitize")


def step_threads():
    """gcc, ThreadSanitizer: the rooms that have threads or shared memory."""
    folder = build("build-tsan", ["-Db_sanitize=thread", "-Dbuildtype=debugoptimized", "-Dcuda=disabled"])
    if folder:
        meson_tests(folder, suites=["threads"], env=SANITIZER_ENV)


def step_ndebug():
    """gcc without assertions: nothing may depend on them."""
    folder = build("build-ndebug", ["-Db_ndebug=true", "-Dcuda=disabled"])
    if folder:
        meson_tests(folder, suites=["unit"])


def fuzz(target):
    seeds = ROOT / "tests" / "fuzz" / "seeds" / target.name
    with tempfile.TemporaryDirectory() as corpus:
        args = [str(target), f"-max_total_time={FUZZ_SECONDS}", "-timeout=60", "-rss_limit_mb=2048",
                "-print_final_stats=1", f"-artifact_prefix={corpus}/", corpus]
        if seeds.is_dir():
            args.append(str(seeds))
        code, out, _ = run(args, SANITIZER_ENV, timeout=FUZZ_SECONDS + 120)
        for found in sorted(pathlib.Path(corpus).glob("*-*")) if code else ():
            out += f"\n{found.name}, base64: {base64.b64encode(found.read_bytes()[:4000]).decode()}\n"
        return code, out


def step_fuzz():
    """libFuzzer, FUZZ_SECONDS for each target."""
    folder = build("build-fuzz", ["-Dfuzz=enabled", "-Dbuildtype=debugoptimized", "-Dcuda=disabled",
                                  "-Db_lundef=false"], {"CC": "clang", "CXX": "clang++"})
    if not folder:
        return
    targets = sorted(p for p in (folder / "tests" / "fuzz").glob("fuzz_*")
                     if p.is_file() and os.access(p, os.X_OK) and not p.name.endswith("_standalone"))
    count("fuzz targets exist", bool(targets))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for target, (code, out) in zip(targets, pool.map(fuzz, targets)):
            executions = re.search(r"number_of_executed_units: (\d+)", out)
            print(f"{target.name}: {executions.group(1) if executions else '?'} executions", flush=True)
            count(f"fuzz {target.name}", code == 0, out)


def step_documents():
    """Manual pages without a warning; the README names commands that exist."""
    for page in sorted((ROOT / "man").glob("*.[1-8]")):
        code, out, _ = run(["mandoc", "-T", "lint", "-W", "warning", str(page)])
        count(f"mandoc {page.name}", code == 0 and not out.strip(), out)
    readme = (ROOT / "README.md").read_text()
    for command in re.findall(r"^(tests/\S+)", readme, re.M):
        count(f"README command {command}", os.access(ROOT / command, os.X_OK))


STEPS = {name[5:]: f for name, f in list(globals().items()) if name.startswith("step_")}


def main():
    # Under nohup the programs would start with SIGHUP ignored, and leave it so for their workers.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    names = sys.argv[1:] or list(STEPS)
    if names == ["--list"]:
        for name, f in STEPS.items():
            print(f"{name:12} {f.__doc__}")
        return 0
    unknown = [n for n in names if n not in STEPS]
    if unknown:
        print(f"tests/run: no step named {unknown[0]}; there are {', '.join(STEPS)}", file=sys.stderr)
        return 2
    for name in names:
        started = time.monotonic()
        print(f"== {name}: {STEPS[name].__doc__}", flush=True)
        STEPS[name]()
        print(f"== {name}: {time.monotonic() - started:.0f} s", flush=True)
    for name in unsteady:
        print(f"UNSTEADY {name}")
    for name in failures:
        print(f"FAILED {name}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
