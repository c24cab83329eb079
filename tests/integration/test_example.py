"""worker-runtime/example as a user has it: libcrw installed to a prefix, the example built outside the tree."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess

import pytest

import jobs

LINE = re.compile(r"epoch (\d+): y = (\S+) x \+ (\S+), loss (\S+)")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder that stands for the root of a system with crun on it."""
    root = tmp_path_factory.mktemp("root")
    p = jobs.run(["meson", "install", "-C", str(jobs.build_folder()), "--no-rebuild", "--destdir", str(root)])
    assert p.returncode == 0, p.stdout + p.stderr
    return root


def test_crun_has_a_second_name(installed):
    """The first one is that of an OCI runtime, and left out beside podman."""
    crun, page = (next(installed.rglob(f"{name}")) for name in ("bin/crun-launch", "man1/crun-launch.1"))
    assert jobs.run([str(crun), "--version"]).stdout.startswith("crun ")
    has_first = any(installed.rglob("bin/crun"))
    assert (crun.is_symlink(), page.is_symlink()) == (has_first, has_first)
    assert not has_first or (os.readlink(crun), os.readlink(page)) == ("crun", "crun.1")


def test_first_name_is_left_out_beside_tools_for_containers(tmp_path):
    (tmp_path / "podman").write_text("#!/bin/sh\n")
    (tmp_path / "podman").chmod(0o755)
    p = jobs.run(["meson", "setup", str(tmp_path / "build"), str(jobs.ROOT), "-Druntime=false"],
                 env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert p.returncode == 0 and "This machine has podman" in p.stdout and "crun is installed as crun-launch alone" in p.stdout, p.stdout
    places = json.loads(jobs.run(["meson", "introspect", "--installed", str(tmp_path / "build")]).stdout).values()
    names = {name.rpartition("/")[2] for name in places}
    assert {"crun-launch", "crun-launch.1", "crund"} <= names and not {"crun", "crun.1", "_crun", "crun.fish"} & names, names


def environment(root):
    pc = next(root.rglob("libcrw.pc"))
    return {**os.environ, "PKG_CONFIG_PATH": str(pc.parent), "PKG_CONFIG_SYSROOT_DIR": str(root),
            "LD_LIBRARY_PATH": str(pc.parents[1])}


def make(root, folder, *args):
    shutil.copytree(next(root.rglob("doc/crun/examples")), folder)
    p = jobs.run(["make", "-C", str(folder), "CFLAGS=-O2 -Wall -Wextra -Werror -Wno-unused-parameter "
                  "-fstrict-aliasing -Wstrict-aliasing=1", *args],
                 env=environment(root))
    assert p.returncode == 0, p.stdout + p.stderr
    return folder


@pytest.fixture(scope="module")
def average(installed, tmp_path_factory):
    return str(make(installed, tmp_path_factory.mktemp("user") / "example") / "average")


def assert_trained(p):
    """Rank 0 alone reports, and the line that the data came from was found."""
    assert p.returncode == 0, p.stderr
    lines = [LINE.fullmatch(line) for line in p.stdout.splitlines()]
    assert [int(line[1]) for line in lines] == list(range(1, 9))
    assert float(lines[-1][2]) == pytest.approx(3, abs=0.2)
    assert float(lines[-1][3]) == pytest.approx(1, abs=0.1)
    assert float(lines[-1][4]) < min(1e-2, float(lines[0][4]))


def test_alone_and_with_own_workers(installed, average):
    for args in ((), ("3",)):
        assert_trained(jobs.run([average, *args], env=environment(installed)))


def test_under_the_installed_crun(installed, average):
    crun = next(installed.rglob("bin/crun-launch"))
    assert_trained(jobs.run([str(crun), "--standalone", "--nproc-per-node=2", average], env=environment(installed)))


EPOCH = re.compile(r"epoch (\d+): (\d+) of 1000 correct, parameters ([0-9a-f]{8})")


def test_a_whole_training_program(installed, average, tmp_path):
    """It learns, the same at every start; a run that is stopped goes on from its snapshot, with other ranks."""
    classify = str(pathlib.Path(average).parent / "classify")
    crun = str(next(installed.rglob("bin/crun-launch")))
    command = [crun, "--standalone", "--nproc-per-node=2", classify]
    runs = [jobs.run(command, env=environment(installed)) for _ in range(2)]
    assert runs[0].returncode == 0, runs[0].stderr
    epochs = EPOCH.findall(runs[0].stdout)
    assert [int(e[0]) for e in epochs] == list(range(1, 7))
    assert int(epochs[-1][1]) > 930
    assert runs[0].stdout == runs[1].stdout

    saved = jobs.run([*command, str(tmp_path / "snapshots")], env=environment(installed))
    assert saved.stdout == runs[0].stdout, saved.stderr
    resumed = jobs.run([crun, "--standalone", "--nproc-per-node=3", classify, str(tmp_path / "snapshots"), "7"],
                       env=environment(installed))
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout.startswith("resumed at step 360\n")  # the last one, which no multiple of 50 is
    assert [int(e[0]) for e in EPOCH.findall(resumed.stdout)] == [7]


def test_what_is_not_saved_is_no_success(installed, average, tmp_path):
    classify = str(pathlib.Path(average).parent / "classify")
    full = {**environment(installed), **jobs.preload("snapshot_faults", SNAPSHOT_FAULTS=tmp_path, SNAPSHOT_FAULT="write 1 28 1000")}
    p = jobs.run([classify, str(tmp_path / "s"), "1"], env=full)
    assert p.returncode == 1 and p.stderr.count("No space left on device") >= 3, p.stderr  # steps 50, 100 and 120
    assert jobs.run([classify, str(tmp_path / "s"), "1"], env=environment(installed)).returncode == 0
    for path in (tmp_path / "s").glob("snap-*"):
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)
    p = jobs.run([classify, str(tmp_path / "s"), "2"], env=environment(installed))
    assert p.returncode == 1 and "use another folder" in p.stderr and "epoch" not in p.stdout, p.stdout + p.stderr


def test_sigterm_saves_and_ends(installed, average, tmp_path):
    classify = str(pathlib.Path(average).parent / "classify")
    command = [classify, str(tmp_path / "snapshots"), "1000000"]
    program = subprocess.Popen(command, env=environment(installed), stdout=subprocess.PIPE, text=True)
    assert program.stdout.readline().startswith("epoch 1:")
    program.send_signal(signal.SIGTERM)
    rest = program.stdout.read()  # not by communicate(), which passes over lines that were read ahead
    assert program.wait(60) == 0
    epochs = 1 + len(EPOCH.findall(rest))
    resumed = jobs.run([*command[:2], str(epochs + 1)], env=environment(installed))
    assert resumed.returncode == 0, resumed.stderr
    step = int(re.match(r"resumed at step (\d+)\n", resumed.stdout)[1])
    assert epochs * 120 <= step <= (epochs + 1) * 120  # of 6000 samples, in batches of 50
    assert [int(e[0]) for e in EPOCH.findall(resumed.stdout)] == [epochs + 1]


def test_the_page_shows_the_program(installed):
    page = next(installed.rglob("man7/crw_example.7")).read_text()
    shown = re.search(r"^\.Bd -literal\n(.*?)^\.Ed$", page, re.S | re.M)[1]
    program = next(installed.rglob("doc/crun/examples/classify.c")).read_text()
    assert shown.replace("\\&", "").replace("\\e", "\\") == program
    assert str(installed) + re.search(r"(/\S+/classify\.c)", page)[1] == str(
        next(installed.rglob("doc/crun/examples/classify.c")))


def test_it_asks_for_the_soname(installed, average):
    p = subprocess.run(["readelf", "-d", average], stdout=subprocess.PIPE, text=True, check=True)
    assert "Shared library: [libcrw.so.0]" in p.stdout
    assert (next(installed.rglob("libcrw.so.0"))).exists()


@pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")
def test_the_header_alone_is_enough_for_cxx(installed, tmp_path):
    source = tmp_path / "use.cc"
    source.write_text("#include <crw.h>\n#include <crw_trainer.h>\nint main() { return crw_version()[0] == 0 || crw_device_count(nullptr) > 1024; }\n")
    flags = jobs.run(["pkg-config", "--cflags", "--libs", "libcrw"], env=environment(installed)).stdout.split()
    p = jobs.run(["c++", "-Wall", "-Wextra", "-Werror", str(source), *flags, "-o", str(tmp_path / "use")],
                 env=environment(installed))
    assert p.returncode == 0, p.stderr
    assert jobs.run([str(tmp_path / "use")], env=environment(installed)).returncode == 0
