"""worker-runtime/example as a user has it: libcrw installed to a prefix, the example built outside the tree."""

import json
import os
import pathlib
import re
import shutil
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


def test_builds_for_hosts_are_installed_where_crun_looks_for_them(tmp_path):
    (tmp_path / "portable").mkdir()
    command = ["meson", "setup", str(tmp_path / "build"), str(jobs.ROOT), "-Druntime=false", f"-Dportable_dir={tmp_path}/portable",
               "--prefix=/opt/crun"]
    p = jobs.run(command)
    assert p.returncode == 1 and "no crun-MACHINE" in p.stdout, p.stdout
    (tmp_path / "portable/crun-aarch64").write_text("")
    p = jobs.run(command)
    assert p.returncode == 0, p.stdout
    places = json.loads(jobs.run(["meson", "introspect", "--installed", str(tmp_path / "build")]).stdout)
    assert places[f"{tmp_path}/portable/crun-aarch64"] == "/opt/crun/lib/crun/portable/crun-aarch64"


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


def test_the_page_shows_the_program(installed):
    page = next(installed.rglob("man7/crw_example.7")).read_text()
    shown = re.search(r"^\.Bd -literal\n(.*?)^\.Ed$", page, re.S | re.M)[1]
    program = next(installed.rglob("doc/crun/examples/average.c")).read_text()
    assert shown.replace("\\&", "").replace("\\e", "\\") == program
    assert str(installed) + re.search(r"(/\S+/average\.c)", page)[1] == str(
        next(installed.rglob("doc/crun/examples/average.c")))


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
