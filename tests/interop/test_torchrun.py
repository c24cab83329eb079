"""crun in place of torchrun 2.13: the same command lines give the same, but for what crun(1) says is different.

tests/long torchrun compares all rows of tests/lib/torchrun_runs.py; here are those marked `ci`, two at once.
"""

import pathlib
import re
import subprocess

import pytest

torch_run = pytest.importorskip("torch.distributed.run")

import jobs
import launcher_compare
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
