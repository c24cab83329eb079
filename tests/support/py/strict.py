"""What a test does that cannot run here."""

import os

import pytest


def skip(reason):
    """Skips, or fails with CRUN_TESTS_STRICT=1: there, everything has to run."""
    if os.environ.get("CRUN_TESTS_STRICT") == "1":
        pytest.fail(f"{reason} (CRUN_TESTS_STRICT=1)", pytrace=False)
    pytest.skip(reason)


def skip_if(reason):
    """The same, unless there is no reason."""
    if reason:
        skip(reason)
