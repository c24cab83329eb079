#!/usr/bin/env python3
"""What crun, crund, crunctl and libcrw need of the C library, so that they start on the older systems that they are promised for.

 - Sources of these programs call a function that came late into glibc in its FALLBACKS file alone, which has another way.
 - A source that calls a function of <unistd.h> includes it: other headers bring it along on some systems only.
 - --build BUILD: the programs there need no symbol of glibc newer than GLIBC, but for the functions of FALLBACKS.

The wheel is linked for glibc 2.28, so its build shows the rest.
"""

import argparse
import pathlib
import re
import subprocess
import sys

from tree import ROOT, sources

GLIBC = (2, 34)
ROOMS = ("base/", "proto/", "rendezvous/", "launcher/", "worker-runtime/")
PROGRAMS = ("launcher/crun", "launcher/crunctl", "rendezvous/crund", "worker-runtime/libcrw.so")
# Function: the one file that may call it; None: tables of the tree serve instead.
FALLBACKS = {
    "_Fork": "launcher/supervise/guardian_os.c",
    "pthread_cond_clockwait": None,  # base/cond_os.h
    "sigabbrev_np": None,     # launcher/util/signal_name.c
    "sigdescr_np": None,
    "strerrordesc_np": None,  # strerror()
    "strerrorname_np": None,
}
CALL = re.compile(rf"\b({'|'.join(FALLBACKS)})\s*\(")
UNISTD = re.compile(r"(?<![\w.>*])(?:close|dup2|dup3|fork|fsync|ftruncate|geteuid|gethostname|getpid|getuid|isatty|pipe2|readlink|"
                    r"rmdir|sysconf|unlink|usleep)\(")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
SYMBOL = re.compile(r"\b(\w+)@GLIBC_(\d+)\.(\d+)")


def blanked(comment):
    return re.sub(r"[^\n]", " ", comment.group())


def calls(path):
    """Each call of a function that this file has no fallback for."""
    text = COMMENT.sub(blanked, (ROOT / path).read_text())
    for call in CALL.finditer(text):
        if FALLBACKS[call.group(1)] != path:
            yield f"{path}:{text.count(chr(10), 0, call.start()) + 1}: {call.group(1)}() is missing in older glibc"


def missing_header(path):
    """The first call of a function whose header is not included."""
    text = (ROOT / path).read_text()
    call = UNISTD.search(COMMENT.sub(blanked, text))
    if call and path.endswith(".c") and "#include <unistd.h>" not in text:
        yield f"{path}:{text.count(chr(10), 0, call.start()) + 1}: {call.group()}) without #include <unistd.h>"


def symbols(path):
    """Each symbol that is too new, and whether there were any at all."""
    p = subprocess.run(["readelf", "--dyn-syms", "--wide", str(path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    found = SYMBOL.findall(p.stdout)
    if p.returncode or not found:
        yield f"{path}: no symbols of glibc found: {p.stdout.strip()[-200:]}"
    for name, major, minor in found:
        if (int(major), int(minor)) > GLIBC and not FALLBACKS.get(name):
            yield f"{path} needs {name} of glibc {major}.{minor}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path)
    args = parser.parse_args()
    checked = [path for path in sources() if path.startswith(ROOMS)]
    faults = [fault for path in checked for fault in (*calls(path), *missing_header(path))]
    faults += [f"FALLBACKS: {path} does not exist" for path in FALLBACKS.values() if path and path not in checked]
    programs = PROGRAMS if args.build else ()
    faults += [fault for program in programs for fault in symbols(args.build / program)]
    print("\n".join(faults), end="\n" if faults else "")
    print(f"portable: {len(checked)} sources and {len(programs)} programs, {len(faults)} faults")
    return 1 if faults or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
