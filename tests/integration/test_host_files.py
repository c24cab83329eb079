"""The hosts of a job: host files that crun and Open MPI read alike, and the hint on the list of a scheduler.

The files are generated, with a fresh seed that is printed. Left out, as crun means to differ: slots of a second mention add up, and Open MPI refuses them; a maximum in a second mention counts
for slots, and with Open MPI only in the first. A host without slots is open, which Open MPI counts as one.
"""

import os
import random
import re
import shutil
import subprocess

import pytest

import jobs

PRINT = jobs.build_folder() / "tests" / "unit" / "launcher" / "print-hosts"
N_FILES = 10
HOSTS = ("node-17", "x.y_z", "10.1.2.3", "10.1.2.4", "10.9.8.7")  # Open MPI asks the DNS for the address of each name


def ours(text):
    p = subprocess.run([PRINT], input=text, capture_output=True, text=True, timeout=60)
    return {} if p.returncode else {name: max(int(slots), 1) for name, slots in (line.split() for line in p.stdout.splitlines())}


def theirs(path):
    p = subprocess.run(["mpirun", "--allow-run-as-root", "--hostfile", str(path), "--do-not-launch", "--display-map", "--bind-to", "none",
                        "--map-by", "ppr:1:node", "--mca", "orte_keep_fqdn_hostnames", "1", "true"],
                       stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                       env={**os.environ, "TMPDIR": str(path.parent), "RES_OPTIONS": "timeout:1 attempts:1"})
    return {name: int(slots) for name, slots in re.findall(r"Data for node: (\S+)\s+Num slots: (\d+)", p.stdout + p.stderr)}


def blank(r, least=0):
    return r.choice(("", " ", "\t", "  ", " \t ")) if not least else r.choice((" ", "\t", "   "))


def setting(r, key, value):
    return blank(r, 1) + key + blank(r) + "=" + blank(r) + str(value)


def line(r, host, is_first):
    slots, most = r.randint(1, 9), r.randint(1, 12)
    words = ""
    if is_first and r.random() < 0.7:
        words += setting(r, "slots", slots)
    if is_first and r.random() < 0.3:
        words += setting(r, r.choice(("max-slots", "max_slots")), most if r.random() < 0.2 else slots + most)
    if r.random() < 0.04:
        words += setting(r, r.choice(("foo", "slot")), 2)
    if r.random() < 0.04:
        words += setting(r, "slots", "x") if not words else ""
    user = "me@" if r.random() < 0.1 else ""
    return blank(r) + user + host + words + blank(r) + r.choice(("", "", " # comment", "# slots=3"))


def host_file(r):
    seen, lines = set(), []
    for _ in range(r.randint(1, 7)):
        if r.random() < 0.15:
            lines.append(r.choice(("", "   ", "# x.y_z", "\t# node-17 slots=2")))
        host = r.choice(HOSTS)
        lines.append(line(r, host, host not in seen))
        seen.add(host)
    return "\n".join(lines) + "\n"


@pytest.mark.skipif(not shutil.which("mpirun"), reason="mpirun of Open MPI is not installed (openmpi-bin)")
def test_as_open_mpi(tmp_path):
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    r = random.Random(seed)
    n_accepted = 0
    for i in range(N_FILES):
        path = tmp_path / f"hosts{i}"
        text = host_file(r)
        path.write_text(text)
        found = ours(text)
        assert found == theirs(path), text
        n_accepted += bool(found)
    assert n_accepted > N_FILES / 4


def test_hint(tmp_path):
    """Where crun runs on one host of an allocation of several, and only there."""
    (tmp_path / "two").write_text("a\na\nb\n")
    (tmp_path / "one").write_text("a\na\n")
    rows = (("two", (), {}, True), ("one", (), {}, False), ("none", (), {}, False), ("two", ("--nnodes=1",), {}, False),
            ("two", ("--standalone",), {}, False), ("two", (), {"OMPI_COMM_WORLD_SIZE": "2"}, False))
    for name, options, more, is_expected in rows:
        p = subprocess.run([jobs.crun(), *options, "--no-python", "true"], capture_output=True, text=True, timeout=60,
                           env={**os.environ, "PBS_NODEFILE": str(tmp_path / name), **more})
        hints = [line for line in p.stderr.splitlines() if "PBS gave this job" in line and "--hosts=auto" in line]
        assert p.returncode == 0 and len(hints) == is_expected, (name, options, more, p.stderr)
