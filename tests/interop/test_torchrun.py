"""crun in place of torchrun 2.13: the same command lines give the same, but for what crun(1) says is different.

tests/soak torchrun compares all rows of tests/support/py/torchrun_runs.py; here are those marked `ci`, two at once.
"""

import pathlib
import re
import subprocess
import sys

import pytest

torch_run = pytest.importorskip("torch.distributed.run")

import jobs
import launcher_compare
import launcher_pair
import torchrun_campaign
import torchrun_parser
import torchrun_runs

ROWS = [row for row in torchrun_runs.ROWS if row.ci]
MANUAL = pathlib.Path(__file__).resolve().parents[2] / "man" / "crun.1"


@pytest.fixture(scope="module")
def results():
    return {result.row.name: result for result in torchrun_campaign.compare_runs(ROWS)}


@pytest.mark.parametrize("name", [row.name for row in ROWS])
def test_run(results, name):
    assert not results[name].unintended, torchrun_campaign.complaint(results[name])


def test_command_lines_are_read_alike():
    rows = torchrun_parser.rows(torch_run)
    wrong = [result for result in map(torchrun_campaign.compare_parsed, rows) if result.unintended]
    assert not wrong, "".join(f"{result.row.name}\n{torchrun_campaign.complaint(result)}" for result in wrong)


def workers_of(command, folder, shell=None, **environment):
    """The commands of the workers that a command line starts in a box."""
    box = launcher_pair.Box(folder)
    row = launcher_pair.Row("by another name", [], env=environment)
    box.fill(row)
    env = box.environment(row)
    env["PATH"] = f"{folder}:{env['PATH']}"
    p = subprocess.run(command, cwd=box.here, env=env, executable=shell, shell=bool(shell), capture_output=True, text=True,
                       timeout=120)
    assert p.returncode == 0, p.stderr
    return {name: worker["command"] for name, worker in box.workers().items()}


def test_called_torchrun(tmp_path):
    """A link on PATH or in the folder of an environment, an alias, a program that starts torchrun."""
    link = tmp_path / "bin" / "torchrun"
    link.parent.mkdir()
    link.symlink_to(jobs.crun())
    (tmp_path / "torchrun").symlink_to(jobs.crun())
    two = ["--nproc_per_node", "2", "probe.py"]
    assert set(workers_of(["torchrun", *two], tmp_path)) == {"0.0", "0.1"}
    wrapper = f"import subprocess, sys; sys.exit(subprocess.call(['torchrun', *{two}]))"
    assert set(workers_of([sys.executable, "-c", wrapper], tmp_path)) == {"0.0", "0.1"}
    alias = f"shopt -s expand_aliases\nalias torchrun={jobs.crun()}\nOMP_NUM_THREADS=2 torchrun {' '.join(two)} | cat"
    assert set(workers_of(alias, tmp_path, shell="/bin/bash")) == {"0.0", "0.1"}
    (link.parent / "python3").symlink_to(sys.executable)
    assert workers_of([str(link), *two[2:]], tmp_path, VIRTUAL_ENV="/nowhere")["0.0"][0] == str(link.parent / "python3")


def test_help_names_every_option():
    text = subprocess.run([jobs.crun(), "--help"], capture_output=True, text=True, timeout=60).stdout
    for action in torch_run.get_args_parser()._actions:
        for spelling in action.option_strings:
            assert spelling.replace("_", "-") in text


def test_every_intended_difference_is_in_the_manual():
    section = MANUAL.read_text().split(".Sh COMPATIBILITY")[1].split(".Sh ")[0]
    in_manual = set(re.findall(r"^\.It Em (.*)$", section, re.M))
    assert set(launcher_compare.INTENDED) <= in_manual


def test_every_intended_difference_is_shown_by_a_row():
    rows = [*torchrun_runs.ROWS, *torchrun_parser.rows(torch_run)]
    used = {title for row in rows for title in row.differs}
    assert used | set(launcher_compare.EVERYWHERE) == set(launcher_compare.INTENDED)


def test_size_of_the_table():
    names = [row.name for row in torchrun_runs.ROWS]
    assert len(names) == len(set(names)) >= 100
    assert len(names) + len(torchrun_parser.rows(torch_run)) >= 200
    assert len(ROWS) >= 20
