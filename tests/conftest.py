"""Makes the Python modules that tests share importable. Pytest reads this file before any test below this folder."""

import pathlib
import sys

import pytest

TESTS = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS / "support" / "py"), str(TESTS / "workers"), str(TESTS / "soak.d")]
import jobs


@pytest.fixture(autouse=True)
def not_for_ever():
    yield from jobs.within(240)
