"""Completion scripts: made of the table of options, understood by the shells, and right where it matters."""

import os
import pty
import re
import select
import shutil
import subprocess
import time

import pytest

import jobs

FOLDER = jobs.build_folder() / "launcher" / "completions"
SCRIPTS = {"bash": FOLDER / "crun", "zsh": FOLDER / "_crun", "fish": FOLDER / "crun.fish"}


def needs(shell):
    return pytest.mark.skipif(not shutil.which(shell), reason=f"{shell} is not installed")


def all_options():
    text = subprocess.run([jobs.crun(), "--help"], stdout=subprocess.PIPE, text=True, timeout=60).stdout
    return set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", text, re.M))


@pytest.mark.parametrize("shell", SCRIPTS)
def test_every_option_is_in_it(shell):
    text = SCRIPTS[shell].read_text()
    options = all_options()
    assert len(options) > 30
    for option in options:
        name = f" -l {option[2:]}" if shell == "fish" else option
        assert re.search(re.escape(name) + r"(?![a-z-])", text), option


@pytest.mark.parametrize("shell, check", [("bash", "-n"), ("zsh", "-n"), ("fish", "-n")])
def test_shells_can_read_it(shell, check):
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    p = subprocess.run([shell, check, SCRIPTS[shell]], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert p.returncode == 0 and p.stderr == ""


def bash_offers(*words, cwd=None, breaks=None):
    """What bash has for the last word; words as bash splits them."""
    script = f"source {SCRIPTS['bash']}\n" \
             "COMP_WORDS=(crun \"$@\"); COMP_CWORD=$#; _crun; printf '%s\\n' \"${COMPREPLY[@]}\""
    p = subprocess.run(["bash", "--norc", "-c", script, "bash", *words], capture_output=True, text=True, timeout=60, cwd=cwd)
    assert p.stderr == "", p.stderr
    return p.stdout.split()


@needs("bash")
def test_bash(tmp_path):
    assert bash_offers("--numa") == ["--numa-binding"]
    assert bash_offers("--numa-binding", "=") == ["node", "socket", "exclusive", "core-complex"]
    assert bash_offers("--numa-binding", "=", "n") == ["node"]
    assert bash_offers("--numa-binding", "core") == ["core-complex"]
    assert bash_offers("--numa_binding", "s") == ["socket"]
    assert bash_offers("--numa_bin") == ["--numa_binding"]
    assert bash_offers("--numa-binding=n") == ["--numa-binding=node"]  # "=" taken out of COMP_WORDBREAKS
    assert bash_offers("--nproc-per-node", "=", "g") == ["gpu"]
    assert set(bash_offers("--")) == all_options()
    assert set(bash_offers("-")) == all_options() | {"-r", "-t", "-m", "-h"}
    assert bash_offers("--standalone", "--exit-code", "worker", "--line-p") == ["--line-prefix"]
    (tmp_path / "logs").mkdir()
    (tmp_path / "log.txt").touch()
    assert bash_offers("--log-dir", "lo", cwd=tmp_path) == ["logs"]
    assert sorted(bash_offers("--event-log", "=", "lo", cwd=tmp_path)) == ["log.txt", "logs"]
    # Behind the program, and behind --, nothing is ours.
    assert bash_offers("train.py", "--numa") == []
    assert bash_offers("-t", "3", "train.py", "-") == []
    assert bash_offers("-t", "3", "-") != []
    assert bash_offers("--", "--numa") == []
    assert bash_offers("--nnodes", "2", "train.py", "--log") == []


@needs("fish")
def test_fish():
    def offers(line):
        p = subprocess.run(["fish", "--no-config", "-c", f"source {SCRIPTS['fish']}; complete -C '{line}'"],
                           stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        assert p.stderr == "", p.stderr
        return {line.split("\t")[0] for line in p.stdout.splitlines()}

    assert offers("crun --numa") == {"--numa-binding"}
    assert offers("crun --numa-binding ") == {"node", "socket", "exclusive", "core-complex"}
    assert offers("crun --numa-binding=e") == {"--numa-binding=exclusive"}
    assert offers("crun --exit-code worker --line-p") == {"--line-prefix"}
    assert all_options() <= offers("crun --")
    assert "--numa-binding" not in offers("crun train.py --numa")
    assert "--numa-binding" not in offers("crun -- --numa")


class Terminal:
    """A shell on a terminal of its own."""

    def __init__(self, *args, **more):
        self.fd, there = pty.openpty()
        self.process = subprocess.Popen(args, stdin=there, stdout=there, stderr=there, start_new_session=True, **more)
        os.close(there)
        self.seen = ""

    def type(self, keys):
        os.write(self.fd, keys.encode())

    def wait_for(self, text):
        deadline = time.monotonic() + 60
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.fd], [], [], 0.1)[0]:
                self.seen += os.read(self.fd, 65536).decode(errors="replace")
        self.seen = self.seen[self.seen.index(text) + len(text):]

    def end(self):
        self.process.kill()
        self.process.wait()
        os.close(self.fd)


@pytest.mark.parametrize("shell, args, setup", [
    ("bash", ["--norc", "--noprofile", "-i"], f"bind 'set enable-bracketed-paste off'; source {SCRIPTS['bash']}"),
    ("zsh", ["-f", "-i"], f"fpath=({FOLDER} $fpath); autoload -Uz compinit && compinit -u -D; unsetopt zle_bracketed_paste"),
])
def test_on_a_terminal(shell, args, setup, tmp_path):
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    t = Terminal(shell, *args, cwd=tmp_path, env={**os.environ, "TERM": "dumb", "HOME": str(tmp_path), "PS1": "> "})
    try:
        t.type(f"{setup}; echo re''ady\n")
        t.wait_for("ready")
        t.wait_for("> ")
        t.type("echo crun; crun --numa-bin\tcore\t")
        t.wait_for("binding")
        t.wait_for("-complex")
    finally:
        t.end()


@pytest.mark.parametrize("shell", SCRIPTS)
def test_print_completion(shell):
    p = subprocess.run([jobs.crun(), "--print-completion", shell, "--nope"], capture_output=True, text=True, timeout=60)
    assert (p.returncode, p.stdout, p.stderr) == (0, SCRIPTS[shell].read_text(), "")


@needs("tcsh")
def test_tcsh():
    """Its own list of completions, read back."""
    script = subprocess.run([jobs.crun(), "--print-completion=tcsh"], capture_output=True, text=True, timeout=60).stdout
    p = subprocess.run(["tcsh", "-f", "-c", f"{script}\ncomplete crun-launch"], capture_output=True, text=True, timeout=60)
    assert p.returncode == 0 and p.stderr == ""
    for option in all_options():
        assert re.search(rf"[ (]{option[2:]}[ )]", p.stdout), option
    assert "'n/--numa-binding/(node socket exclusive core-complex)/'" in p.stdout and "'n/--log-dir/d/'" in p.stdout
