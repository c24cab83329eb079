"""The units for systemd: sockets that are handed over are used, and the sandbox is as tight as the README has it."""

import os
import re
import shutil
import socket
import subprocess

import pytest

import jobs

UNITS = jobs.ROOT / "packaging" / "systemd"
# sh sets LISTEN_PID, which has to be the number of the process that becomes crund.
ACTIVATED = ["sh", "-c", 'export LISTEN_PID=$$ && exec "$@"', "sh"]


def start(listener, *options, pid=None):
    def place():
        os.dup2(listener.fileno(), 3)

    command = [str(jobs.build_folder() / "rendezvous" / "crund"), *options]
    env = {**os.environ, "LISTEN_FDS": "1", **({"LISTEN_PID": pid} if pid else {})}
    return subprocess.Popen([*([] if pid else ACTIVATED), *command], env=env, preexec_fn=place, pass_fds=[3], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def keepalive_s(port):
    """Until the kernel asks the other end of the one connection to this port; 0: never."""
    for line in open("/proc/net/tcp").read().splitlines()[1:]:
        _, local, _, state, _, timer, *_ = line.split()
        if int(local.rsplit(":", 1)[1], 16) == port and state == "01":
            kind, ticks = (int(number, 16) for number in timer.split(":"))
            return ticks / os.sysconf("SC_CLK_TCK") if kind == 2 else 0
    raise AssertionError("there is no such connection")


def test_socket_of_the_service_manager_in_place_of_the_default():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        daemon = start(listener)
        assert daemon.stdout.readline() == f"crund: listening on descriptor 3 (port {port})\n"
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(bytes.fromhex("00cef7853c0d01020304"))
        assert client.recv(4) == bytes.fromhex("01020304")
        assert keepalive_s(port) > 0, "a client whose host is lost would stay for ever"
    daemon.terminate()
    assert daemon.stdout.read() == "", "it listens nowhere else"
    assert daemon.wait(20) == 0


def test_sockets_for_another_process_are_left_alone():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        daemon = start(listener, "--listen=127.0.0.1:0", pid="1")
        assert re.match(r"crund: listening on 127\.0\.0\.1:\d+\n", daemon.stdout.readline())
        daemon.terminate()
        daemon.communicate(timeout=20)


def test_descriptor_that_does_not_listen():
    with socket.socket() as no_listener:
        daemon = start(no_listener)
        _, err = daemon.communicate(timeout=20)
        assert daemon.returncode == 1 and "cannot use descriptor 3 of the service manager" in err


def unit(name):
    """The lines of a unit, without comments: NAME=VALUE."""
    return [line for line in (UNITS / name).read_text().splitlines() if "=" in line and not line.startswith("#")]


def test_units_are_closed_to_the_network_and_keep_users_apart():
    assert [line for line in unit("crund.socket") if line.startswith("Listen")] == ["ListenStream=127.0.0.1:29400"]
    service = unit("crund.service")
    assert "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK" in service, "netlink has the users of connections"
    assert not any(line.startswith("PrivateUsers=") for line in service), "all users would be one"
    assert "ListenStream=29400" in unit("crund.socket.d/network.conf")
    assert any("--security=require" in line for line in unit("crund.service.d/network.conf"))


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_sandbox():
    p = jobs.run(["systemd-analyze", "security", "--offline=true", "--no-pager", UNITS / "crund.service"])
    exposure = re.search(r"Overall exposure level for \S+: ([0-9.]+)", p.stdout).group(1)
    assert float(exposure) <= 2.0
    assert f"exposure level {exposure} " in (jobs.ROOT / "README.md").read_text()
