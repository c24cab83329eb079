"""The short form of the soak test resize-histories, and that its counter can say no."""


import jobs


def run_histories(*args):
    p = jobs.run_soak("train_resizes.py", *args, timeout=600)
    print(p.stdout)
    return p


def test_every_sample_is_committed_once():
    p = run_histories("--histories", 4)
    assert p.returncode == 0, p.stdout + p.stderr


def test_a_sample_taken_for_another_is_found():
    p = run_histories("--histories", 1, "--wrong")
    assert p.returncode == 1 and "{3: 0, 4: 2" in p.stdout, p.stdout + p.stderr
