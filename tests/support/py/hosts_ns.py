#!/usr/bin/env python3
"""Runs a command whose look-ups of loopback addresses never leave the machine.

PyTorch's store asks the resolver for the name of every peer, on its event loop. Where the hosts file has no
entry for ::ffff:127.0.0.1 that goes to a name server, and a lost packet stops a test for five seconds. The
command gets its own /etc/hosts in a private mount namespace; nobody else sees it.

    hosts_ns.py COMMAND ARGUMENT...          or, from Python:    subprocess.Popen(hosts_ns.command([...]))

Needs root or unprivileged user namespaces. Without either the command runs all the same, with the resolver
it finds: slower, perhaps, but not wrong.
"""

import ctypes
import os
import socket
import sys
import tempfile

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

HOSTS = """\
127.0.0.1 localhost {name}
::1 localhost
::ffff:127.0.0.1 localhost
"""

_libc = ctypes.CDLL(None, use_errno=True)


def _call(function, *arguments):
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _unshare():
    try:
        _call(_libc.unshare, CLONE_NEWNS)
    except PermissionError:
        _call(_libc.unshare, CLONE_NEWUSER | CLONE_NEWNS)


def enter():
    """Gives the calling process (single-threaded, about to exec) its own /etc/hosts."""
    _unshare()
    _call(_libc.mount, b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    with tempfile.NamedTemporaryFile("w", prefix="hosts.") as hosts:
        hosts.write(HOSTS.format(name=socket.gethostname()))
        hosts.flush()
        os.chmod(hosts.name, 0o644)
        _call(_libc.mount, os.fsencode(hosts.name), b"/etc/hosts", None, MS_BIND, None)


def command(argv):
    return [sys.executable, os.path.abspath(__file__), *argv]


def main():
    if len(sys.argv) < 2:
        sys.exit("usage: hosts_ns.py COMMAND ARGUMENT...")
    try:
        enter()
    except OSError as error:
        print(f"hosts_ns: no private /etc/hosts: {error}", file=sys.stderr)
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
