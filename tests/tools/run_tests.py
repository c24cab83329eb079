"""Runs every kind of test in turn: tests/run [STEP...]; or what covers some files.

tests/run                   all steps
tests/run STEP...           these; --list names them
tests/run --for PATH...     the quick steps, and the tests that tests/map names for these files or folders
tests/run --changed [BASE]  the same for what differs from the commit where this branch left BASE (main)

Steps are independent: when one fails, the next one runs all the same. A build that fails counts as one failed test. The
last line is "N passed, N failed", the line before it counts the tests that ran again (results.py decides which may).

A new step is a function with @step(FOLDER THAT IT BUILDS): its name is the step's name, its first line of text is what
--list prints. It counts what it finds with count(name, ok, output), or through meson_tests() and pytest().
"""

import base64
import concurrent.futures
import fnmatch
import json
import os
import pathlib
import re
import signal
import sys
import tempfile
import time

import results
import test_map
from results import ROOT, count, meson_tests, pytest, run

WERROR = os.environ.get("CRUN_TESTS_WERROR", "0") == "1"
FUZZ_SECONDS = int(os.environ.get("CRUN_FUZZ_SECONDS", "3"))
SANITIZER_ENV = {
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=1:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    # By default a process without a report sleeps for a second before it ends.
    "TSAN_OPTIONS": "halt_on_error=1:atexit_sleep_ms=50",
}
STEPS = {}
STEP_BUILDS = {}


def step(folder=None):
    """Registers a step, and the folder that it builds."""
    def register(function):
        STEPS[function.__name__] = function
        STEP_BUILDS[function.__name__] = folder
        return function
    return register


# Every folder that a step builds: the options of meson setup, the environment, the targets (none: all; a suite: what its tests need).
# Half of the processor time of all steps goes into compilers: no folder is optimized more than its tests gain from it.
CLANG = {"CC": "clang", "CXX": "clang++"}
BUILDS = {
    "build": (["-Dgpu_generations=90"], {}, []),  # nvcc takes a minute for each
    "build-asan": (["-Db_sanitize=address,undefined", "-Db_lundef=false", "-Ddebug=true", "-Doptimization=0",
                    "-Dcuda=disabled"], CLANG, []),  # with -O1 clang takes three times as long for most of its files
    "build-tsan": (["-Db_sanitize=thread", "-Db_ndebug=true", "-Ddebug=true", "-Doptimization=1", "-Dcuda=disabled"], {},
                   ["suite:threads"]),
    "build-fuzz": (["-Dfuzz=enabled", "-Ddebug=true", "-Doptimization=1", "-Dcuda=disabled", "-Db_lundef=false"], CLANG,
                   ["fuzz-programs"]),
}


def needed_by_tests(folder, suite):
    """The targets of ninja that the tests of a suite start."""
    def introspect(what):
        code, out, _ = run(["meson", "introspect", str(folder), what])
        return json.loads(out) if code == 0 else []
    tests = [t for t in introspect("--tests") if any(s.split(":")[-1] == suite for s in t["suite"])]
    ids, words = {i for t in tests for i in t["depends"]}, {word for t in tests for word in t["cmd"]}
    paths = {f for t in introspect("--targets") for f in t["filename"] if t["id"] in ids or f in words}
    return sorted(os.path.relpath(p, folder) for p in paths)


def build_folder(name, idle):
    """Configures and builds a folder; (exit code, output, seconds)."""
    options, env, targets = BUILDS[name]
    folder = ROOT / name
    options = ["-Dtests=enabled", *options, *(["-Dwerror=true"] if WERROR else [])]
    verb = ["--reconfigure"] if (folder / "build.ninja").exists() else []
    policy = ["chrt", "--idle", "0"] if idle else []
    code, out, _ = run(policy + ["meson", "setup", *verb, str(folder), *options], env)
    if code:
        return code, out, 0
    named = [n for t in targets for n in (needed_by_tests(folder, t.removeprefix("suite:")) if t.startswith("suite:") else [t])]
    code, out, seconds = run(policy + ["ninja", "-C", str(folder), *named], env, timeout=1800)
    return code, re.sub(r"^\[\d+/\d+\] .*\n", "", out, flags=re.M), seconds  # the steps that succeeded would hide what failed


class Builds:
    """Builds the folders of later steps while the tests of earlier ones run, and has clang-tidy look at the sources. Process
    tests mostly wait; work of the scheduler's idle class takes the time that they leave, and none that they want."""

    def __init__(self, names, with_tidy=False):
        self.pool = concurrent.futures.ThreadPoolExecutor(1)
        self.names = [n for n in BUILDS if n in names]
        self.running = {}
        self.with_tidy = with_tidy
        self.tidy = None  # what clang-tidy found, once it is asked for

    def get(self, name):
        """The folder of a build, None when it failed (counted). The first call begins the builds after it, too."""
        if name not in self.running:
            self.running[name] = self.pool.submit(build_folder, name, False)
            for later in self.names:
                if later not in self.running:
                    self.running[later] = self.pool.submit(build_folder, later, True)
            if self.with_tidy and name == "build":
                self.tidy = self.pool.submit(run_check, "tidy", "--build", str(ROOT / name), idle=True)
        code, out, seconds = self.running[name].result()
        print(f"built {name} in {seconds:.1f} s", flush=True)
        count(f"build {name}", code == 0, out)
        return ROOT / name if code == 0 else None


builds = Builds([])


@step("build")
def release():
    """gcc, release: unit tests, seeds of the fuzzers, then the programs and their real peers."""
    folder = builds.get("build")
    if folder:
        check("portable", "--build", str(folder))
        check("assertions", "--build", str(folder))
        meson_tests(folder)
        pytest(folder, ["tests/integration"], results.WAITING)
        pytest(folder, ["tests/interop"], results.COMPUTING)


@step("build-asan")
def sanitize():
    """clang, AddressSanitizer and UndefinedBehaviorSanitizer: unit tests, and the marked process tests."""
    folder = builds.get("build-asan")
    if folder:
        meson_tests(folder, env=SANITIZER_ENV)
        pytest(folder, ["tests/integration"], results.WAITING, SANITIZER_ENV, markers="sanitize")


@step("build-tsan")
def threads():
    """gcc, ThreadSanitizer, without assertions: the code that has threads or shared memory."""
    folder = builds.get("build-tsan")
    if folder:
        meson_tests(folder, suites=["threads"], env=SANITIZER_ENV)


def fuzz_target(target):
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


@step("build-fuzz")
def fuzz():
    """libFuzzer, FUZZ_SECONDS for each target."""
    folder = builds.get("build-fuzz")
    if not folder:
        return
    targets = sorted(p for p in (folder / "tests" / "fuzz").glob("fuzz_*")
                     if p.is_file() and os.access(p, os.X_OK) and not p.name.endswith("_standalone"))
    count("fuzz targets exist", bool(targets))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for target, (code, out) in zip(targets, pool.map(fuzz_target, targets)):
            executions = re.search(r"number_of_executed_units: (\d+)", out)
            print(f"{target.name}: {executions.group(1) if executions else '?'} executions", flush=True)
            count(f"fuzz {target.name}", code == 0, out)


def run_check(name, *args, idle=False):
    """Runs tests/tools/check_NAME.py; (exit code, output)."""
    policy = ["chrt", "--idle", "0"] if idle else []
    return run([*policy, sys.executable, str(ROOT / "tests" / "tools" / f"check_{name}.py"), *args], timeout=1800 if idle else 900)[:2]


def count_check(name, code, out):
    """The last line of a check is the result in figures."""
    print(out.rstrip().rpartition("\n")[2], flush=True)
    count(f"check {name}", code == 0, out)


def check(name, *args):
    count_check(name, *run_check(name, *args))


@step()
def includes():
    """Directions between rooms and folders, what a core may include, functions that older glibc lacks, assertions that act."""
    check("includes")
    check("portable")
    check("assertions")


@step()
def format():
    """clang-format 14 on all C and CUDA sources; the patches in tests/sim/mutants apply to them."""
    check("format")
    for patch in sorted((ROOT / "tests" / "sim" / "mutants").glob("*.patch")):
        code, out, _ = run(["patch", "--dry-run", "--batch", "-p1", "-F0", "-d", str(ROOT), "-i", str(patch)])
        count(f"{patch.name} applies", code == 0, out)


@step()
def language():
    """Words of comments, functions that share a name, names that are defined twice."""
    check("language")


@step()
def commits():
    """The form of the commits since these rules hold."""
    check("commits")


@step()
def tidy():
    """clang-tidy on the changed files and a part of the others; tests/soak tidy looks at all."""
    folder = ROOT / "build"
    if builds.tidy:
        count_check("tidy", *builds.tidy.result())
        return
    if not (folder / "compile_commands.json").exists():
        folder = builds.get("build")
    if folder:
        check("tidy", "--build", str(folder))


def rendered_lines(page):
    """As a terminal of 80 columns shows it; a character that is printed twice is bold."""
    _, out, _ = run(["mandoc", "-T", "ascii", "-O", "width=80", str(page)])
    return re.sub(r".\x08", "", out).splitlines()


@step()
def documents():
    """Manual pages without a warning; what the documents name exists, and no sentence of them is too long."""
    check("documents")
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    in_jobs = re.search(r"^ *step: \[(.*)\]$", workflow, re.M).group(1).replace(",", " ").split()
    named = {path.stem for path in (ROOT / "tests").glob("int*/test_*.py")}
    count("the files of results.LONGEST exist", named.issuperset(results.LONGEST), str(set(results.LONGEST) - named))
    count("the jobs of ci.yml are the steps of tests/run", sorted(in_jobs) == sorted(STEPS), f"{in_jobs}\n{list(STEPS)}")
    for page in sorted((ROOT / "man").glob("*.[1-8]")):
        code, out, _ = run(["mandoc", "-T", "lint", "-W", "warning", str(page)])
        count(f"mandoc {page.name}", code == 0 and not out.strip(), out)
        if page.suffix in (".1", ".8"):
            wide = [line for line in rendered_lines(page) if len(line) > 80]
            count(f"80 columns {page.name}", not wide, "\n".join(wide))
    for readme in ("README.md", "tests/README.md"):
        for command in sorted(set(re.findall(r"^ *(tests/\S+)", (ROOT / readme).read_text(), re.M))):
            count(f"{readme}: command {command}", os.access(ROOT / command, os.X_OK))


QUICK = (includes, format, language, documents)


def unit_tests_of(path):
    """Meson's names of a C test by its file: some are named without the prefix of the file."""
    match = re.match(r"tests/unit/([\w-]+)/((?:test_)?(\w+))\.c$", path)
    return [f"{match[1]}/{match[2]}", f"{match[1]}/{match[3]}"] if match else []


def covering(paths):
    """Runs what tests/map names for these paths."""
    global builds
    unit, process, then, unknown = test_map.selection(paths, test_map.load())
    unit += [name for path in paths for name in unit_tests_of(path)]
    for path in unknown:
        if not unit_tests_of(path):
            print(f"{path}: tests/map names no test for it")
    for check_step in QUICK:
        check_step()
    if unit or process:
        builds = Builds(["build"])
        folder = builds.get("build")
        names = [n for n in results.meson_names(folder) if any(fnmatch.fnmatchcase(n, p) for p in unit)] if folder else []
        if names:
            meson_tests(folder, names=names)
        if folder and process:
            pytest(folder, process, results.COMPUTING)
    for command in then:
        print(f"the full count, by hand: {command}")


def usage():
    print(__doc__.partition("\n\n")[2].partition("\n\n")[0])
    for name, function in STEPS.items():
        print(f"    {name:12} {function.__doc__.splitlines()[0]}")


def main():
    # Under nohup the programs would start with SIGHUP ignored, and leave it so for their workers.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    names = sys.argv[1:] or list(STEPS)
    if names[0] in ("--list", "--help", "-h"):
        usage()
        return 0
    if names[0] in ("--for", "--changed"):
        if names[0] == "--for" and len(names) == 1 or names[0] == "--changed" and len(names) > 2:
            usage()
            return 2
        covering([os.path.relpath(n, ROOT) for n in names[1:]] if names[0] == "--for" else test_map.changed_files(*names[1:] or ["main"]))
        return results.close()
    unknown = [n for n in names if n not in STEPS]
    if unknown:
        print(f"tests/run: no step named {unknown[0]}; there are {', '.join(STEPS)}", file=sys.stderr)
        return 2
    global builds
    builds = Builds([STEP_BUILDS[n] for n in names], with_tidy="tidy" in names)
    if not {"release", "sanitize"}.isdisjoint(names):
        results.interpreter.prepare()
    for name in names:
        started = time.monotonic()
        print(f"== {name}: {STEPS[name].__doc__.splitlines()[0]}", flush=True)
        STEPS[name]()
        print(f"== {name}: {time.monotonic() - started:.0f} s", flush=True)
    return results.close()


if __name__ == "__main__":
    sys.exit(main())
