"""The four programs with options: one table each, which --help, the completions and the parser read, and which the manual page has."""

import re
import shutil
import subprocess

import pytest

import jobs

BUILD = jobs.build_folder()
PROGRAMS = {
    "crun": (jobs.crun(), "crun.1"),
    "crund": (BUILD / "rendezvous" / "crund", "crund.8"),
    "crunctl": (BUILD / "launcher" / "crunctl", "crunctl.1"),
    "train": (jobs.train(), "train.1"),
}
OWN_PARSER = [name for name in PROGRAMS if name != "crun"]  # crun reads its words as argparse does
SCRIPTS = {"bash": "{}", "zsh": "_{}", "fish": "{}.fish"}


def run(name, *words):
    return subprocess.run([PROGRAMS[name][0], *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)


def options(name):
    found = re.findall(r"^  (?:-(\w), )?--([a-z-]+)", run(name, "--help").stdout, re.M)
    assert len(found) > 7
    return found


def script(name, shell):
    return BUILD / "launcher" / "completions" / SCRIPTS[shell].format(name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_manual_has_every_option(name):
    rows = [line for line in (jobs.ROOT / "man" / PROGRAMS[name][1]).read_text().splitlines() if line.startswith(".It ")]
    for letter, option in options(name):
        row = next((row for row in rows if re.search(rf"Fl Fl {option}(?![a-z-])", row)), None)
        assert row, f"--{option} is not in the manual"
        assert not letter or f"Fl {letter} " in row, f"-{letter} is not in the manual"


@pytest.mark.parametrize("name", OWN_PARSER)
def test_help_fits_a_terminal(name):
    p = run(name, "--help")
    assert p.returncode == 0 and p.stderr == "" and max(map(len, p.stdout.splitlines())) <= 80


@pytest.mark.parametrize("shell", SCRIPTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_completions_have_every_option(name, shell):
    text = script(name, shell).read_text()
    assert run(name, "--print-completion", shell).stdout == text
    for _, option in options(name):
        assert re.search(re.escape(f" -l {option}" if shell == "fish" else f"--{option}") + r"(?![a-z-])", text), option
    if shutil.which(shell):
        p = subprocess.run([shell, "-n", script(name, shell)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        assert (p.returncode, p.stderr) == (0, "")


def bash_offers(name, *words):
    offer = f"source {script(name, 'bash')}\n" \
            f"COMP_WORDS=({name} \"$@\"); COMP_CWORD=$#; _{name}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    p = subprocess.run(["bash", "--norc", "-c", offer, "bash", *words], capture_output=True, text=True, timeout=60)
    assert p.stderr == "", p.stderr
    return p.stdout.split()


def test_bash_offers_options_between_other_words():
    assert bash_offers("crunctl", "st") == ["status", "stacks"]
    assert bash_offers("crunctl", "status", "--js") == ["--json"]
    assert bash_offers("crund", "--sandbox", "=", "re") == ["require"]
    assert bash_offers("train", "--shape", "") == ["10x2", "20x1"]
    assert bash_offers("train", "toy", "--lr", "0.1", "--snapshot-e") == ["--snapshot-every"]


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
def test_fish_offers_words_and_options():
    for name, line, offered in (("crunctl", "crunctl st", {"status", "stacks"}), ("crunctl", "crunctl status --js", {"--json"}),
                                ("train", "train --backend=cu", {"--backend=cuda"})):
        p = subprocess.run(["fish", "--no-config", "-c", f"source {script(name, 'fish')}; complete -C '{line}'"],
                           stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        assert {row.split("\t")[0] for row in p.stdout.splitlines()} == offered, p.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_misspelled_option(name):
    p = run(name, "--versoin", "x")
    assert p.returncode == 2 and p.stdout == "" and "--versoin" in p.stderr and "did you mean --version?" in p.stderr


@pytest.mark.parametrize("name", OWN_PARSER)
def test_prefix_is_no_option(name):
    """A prefix that is unique today may be another option's tomorrow; the sentence has the whole name."""
    p = run(name, "--print-completio=bash")
    assert p.returncode == 2 and "did you mean --print-completion?" in p.stderr, p.stderr
    assert run(name, "--print_completion=bash").returncode == 0


def test_option_that_is_gone():
    p = run("train", "--plot=x.svg")
    assert p.returncode == 2 and p.stderr == "train: --plot is gone: python/examples/plot_metrics.py draws the file of --metrics\n"
    assert "plot" not in {option for _, option in options("train")} and "--plot" not in script("train", "bash").read_text()
