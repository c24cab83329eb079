"""The recorded conversations with PyTorch's server, byte for byte, against the running daemon.

tests/unit/rendezvous/test_transcripts.c does the same with the store core; here the sockets take part: the
greeting, slices, and the closing of connections.
"""

import re
import struct

import pytest

import jobs
from crund import Client, Closed, Crund

# What the recordings' README calls defects of the reference.
DEFECTS = ("06b-", "15b-", "err-no-validate", "err-validate-split", "legacy-")
FILES = sorted(p for p in (jobs.ROOT / "tests/data/transcripts").glob("*.txt") if not p.name.startswith(DEFECTS))
LIST_KEYS = b"\x11"


def events(path):
    for line in path.read_text().splitlines():
        match = re.match(r"([CS])(\d*)([:!]) (.*)", line)
        if match:
            side, number, kind, rest = match.groups()
            yield side, int(number or 1), bytes.fromhex(rest) if kind == ":" else None


def sorted_keys(reply):
    keys, at = [], 8
    while at < len(reply):
        (size,) = struct.unpack_from("<Q", reply, at)
        keys.append(reply[at + 8 : at + 8 + size])
        at += 8 + size
    return reply[:8], sorted(keys)


def settle(clients, sender):
    """Everything sent so far is executed: it has arrived, and the daemon serves a fresh client after the others."""
    sender.arrive()
    for _ in range(2):
        with Client(*clients["address"]) as probe:
            assert probe.ping()


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_replay(build, path):
    with Crund(build) as crund:
        clients = {"address": ("127.0.0.1", crund.port)}
        last = {}
        for side, number, data in events(path):
            if number not in clients:
                clients[number] = Client(*clients["address"], validate=False, timeout=60)
            client = clients[number]
            if side == "C" and data is None:
                client.close()
            elif side == "C":
                try:
                    client.send(data)
                except Closed:
                    pass  # err-bad-magic: closed one message earlier than the reference does
                last[number] = data
                settle(clients, client)
            elif data is None:
                assert client.socket.fileno() < 0 or client.is_closed(within=60)
            else:
                reply = client.read(len(data))
                if last[number] == LIST_KEYS:
                    reply, data = sorted_keys(reply), sorted_keys(data)
                assert reply == data
        for number, client in clients.items():
            if number == "address" or client.socket.fileno() < 0:
                continue
            client.socket.setblocking(False)
            try:
                assert client.socket.recv(100) == b""
            except (BlockingIOError, ConnectionResetError):
                pass


def test_there_are_recordings():
    assert len(FILES) >= 34
