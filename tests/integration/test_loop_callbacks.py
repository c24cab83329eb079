"""The short form of `tests/soak loop-callbacks`: no callback of an event loop takes long."""

import pytest

import jobs

LIMIT_MS = 20  # of CPU time; a few are above 1 ms (the fork of the guardian), and CPUs differ


@pytest.mark.skipif("asan" in str(jobs.build_folder()), reason="a sanitizer has to be the first library that is loaded")
def test_callbacks_are_short():
    p = jobs.run_soak("loop_callbacks.py", "--limit-ms", LIMIT_MS, *(
        f"tests/integration/test_crun{name}" for name in (
            "_signals.py::test_debug_of_a_session", "_signals.py::test_pause_between_restarts", "_output.py::test_much_output",
            ".py::test_killed_guardian_is_a_failure_like_any_other")))
    print(p.stdout)
    assert p.returncode == 0, p.stdout + p.stderr
