"""The manual page of crun has every option, variable, signal and exit code that the program has."""

import re
import subprocess

import jobs

PAGE = (jobs.ROOT / "man" / "crun.1").read_text()
SOURCES = "\n".join(path.read_text() for path in sorted((jobs.ROOT / "launcher").rglob("*.c")))


def section(name):
    return PAGE.split(f"\n.Sh {name}\n", 1)[1].split("\n.Sh ", 1)[0]


def test_every_option():
    text = subprocess.run([jobs.crun(), "--help"], stdout=subprocess.PIPE, text=True, timeout=60).stdout
    options = re.findall(r"^  (?:-(\w), )?--([a-z-]+)", text, re.M)
    assert len(options) > 30
    described = [line for line in section("OPTIONS").splitlines() if line.startswith(".It ")]
    for letter, name in options:
        line = next((line for line in described if re.search(rf"Fl Fl {name}(?![a-z-])", line)), None)
        assert line, f"--{name} is not in the manual"
        assert not letter or f"Fl {letter} " in line, f"-{letter} is not in the manual"


def test_every_option_without_pet_is_said_so():
    table = (jobs.ROOT / "launcher" / "cli" / "options_table.c").read_text()
    for entry in re.split(r"\n    \[OPTION_", table)[1:]:
        name = re.search(r'\{"([a-z-]+)"', entry).group(1)
        if name in ("help", "version"):
            continue
        text = re.split(rf"\n\.It [^\n]*Fl Fl {name}(?![a-z-])[^\n]*\n", section("OPTIONS"), maxsplit=1)[1]
        text = re.split(r"\n\.It |\n\.El", text, maxsplit=1)[0]
        has_no_pet = ".pet = true" not in entry if ".ours = true" in entry else ".no_pet = true" in entry
        assert ("No PET" in text) == has_no_pet, name


def test_every_variable():
    read = set(re.findall(r'(?:getenv|envp_get)\([^"()]*(?:\([^()]*\))?[^"()]*"([A-Z_0-9]+)"\)', SOURCES))
    set_ = set(re.findall(r'strlist_add\(out, "([A-Z_0-9]+)=', SOURCES))
    assert {"NO_COLOR", "TMPDIR", "CRUN_GRACE_SECONDS"} <= read and {"RANK", "MASTER_PORT"} <= set_
    for name in sorted(read | set_):
        assert re.search(rf"\b{name}\b", section("ENVIRONMENT")), f"{name} is not in the manual"


def test_exit_codes_and_sections():
    status = section("EXIT STATUS")
    for code in ("0", "1", "2", "126", "127", "128"):
        assert re.search(rf"\b{code}\b", status), code
    for name in ("SIGNALS", "FILES", "COMPATIBILITY", "DIAGNOSTICS", "EXAMPLES"):
        assert section(name).strip()


def test_no_complaints_of_mandoc():
    p = subprocess.run(["mandoc", "-Tlint", "-Wwarning", str(jobs.ROOT / "man" / "crun.1")], capture_output=True, text=True, timeout=60)
    assert p.stdout == "" and p.returncode == 0
