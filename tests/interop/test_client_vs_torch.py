"""Our blocking store client against PyTorch's TCPStore server, both of its back ends.

The server is a process of its own. Beside our client a PyTorch client talks to it, so that each reads what
the other has written.
"""

import contextlib
import datetime
import itertools
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

import hosts_ns
import nodes
from store_client import StoreClient, StoreError

SERVER = pathlib.Path(__file__).with_name("torch_server.py")
MIB = 1 << 20
COUNT = itertools.count()


class TorchServer:
    def __init__(self, backend, port=0):
        self.backend = backend
        self.process = subprocess.Popen(hosts_ns.command([sys.executable, SERVER, str(port), backend]),
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait(120)


@pytest.fixture(scope="module", params=["libuv", "legacy"])
def server(request, torch_distributed):
    with contextlib.closing(TorchServer(request.param)) as server:
        yield server


@pytest.fixture(scope="module")
def torch_store(server, torch_distributed):
    return torch_distributed.TCPStore("127.0.0.1", server.port, None, False, wait_for_workers=False,
                                      timeout=datetime.timedelta(seconds=120))


@pytest.fixture
def client(build, server):
    with StoreClient(build, "127.0.0.1", server.port) as client:
        yield client


@pytest.fixture
def name():
    """A key that no other test uses; all tests of a back end share one server."""
    return b"key%d " % next(COUNT)


@pytest.fixture
def libuv_only(server):
    if server.backend != "libuv":
        pytest.skip("not an operation or limit of the legacy server")


def later(seconds, function, *arguments):
    timer = threading.Timer(seconds, function, arguments)
    timer.start()
    return timer


def fails(name):
    """The call inside fails with this result."""
    @contextlib.contextmanager
    def context():
        with pytest.raises(StoreError) as caught:
            yield caught
        assert caught.value.name == name
    return context()


# ---------------------------------------------------------------- keys and values


@pytest.mark.parametrize("value", [b"v", b"", b"\x00\xff\n", bytes(range(256)), b"z" * 100000],
                         ids=["one", "empty", "binary", "all", "long"])
def test_each_reads_what_the_other_set(client, torch_store, name, value):
    client.set(name, value)
    client.ping()
    assert torch_store.get(name.decode()) == value
    torch_store.set(name.decode() + "2", value)
    assert client.get(name + b"2", 60000) == value


def test_names(client, torch_store):
    for key in ["", "/", "a/b", "\xe9\0x", "k" * 8191]:
        client.set(key.encode(), b"ours")
        client.ping()
        assert torch_store.get(key) == b"ours"
        assert torch_store.delete_key(key)


def test_key_too_long(client, torch_store, libuv_only):
    with fails("EMSGSIZE"):
        client.set(b"k" * 8192, b"")
    client.ping()


def test_add(client, torch_store, name):
    assert client.add(name, 5) == 5
    assert torch_store.add(name.decode(), -7) == -2
    assert client.add(name, -(2**63) + 2) == -(2**63)
    assert client.get(name, 60000) == b"-9223372036854775808"
    assert client.add(name, 2**63 - 1) == -1


def test_add_to_what_is_no_number(client, name):
    client.set(name, b"not a number")
    with fails("CLOSED") as caught:
        client.add(name, 1)
    assert "connection lost in ADD" in caught.value.sentence
    with fails("CLOSED"):
        client.ping()


def test_check_and_delete(client, torch_store, name):
    assert client.check()
    assert not client.check(name)
    torch_store.set(name.decode(), "x")
    assert client.check(name, name)
    assert not client.check(name, name + b"2")
    assert client.delete(name)
    assert not client.delete(name)
    assert not torch_store.check([name.decode()])


def test_compare_set(client, torch_store, name):
    assert client.compare_set(name, b"not there", b"new") == b"not there"
    assert client.compare_set(name, b"", b"first") == b"first"
    assert client.compare_set(name, b"", b"second") == b"first"
    assert client.compare_set(name, b"first", b"second") == b"second"
    assert torch_store.get(name.decode()) == b"second"


def test_append(client, torch_store, name):
    for part in [b"", b"ab", b"", b"c"]:
        client.append(name, part)
    client.ping()
    assert torch_store.get(name.decode()) == b"abc"


def test_num_keys_and_list_keys(client, torch_store, name):
    n_before = client.num_keys()
    client.set(name, b"")
    torch_store.set(name.decode() + "2", "")
    assert torch_store.check([name.decode() + "2"])  # a SET has no reply: it may still be on its way
    assert client.num_keys() == n_before + 2
    assert {name, name + b"2"} <= client.list_keys()
    assert client.list_keys() == {key.encode() for key in torch_store.list_keys()}


def test_join_counts_at_the_key_without_slash(client, torch_distributed, server):
    n = client.join()
    torch_distributed.TCPStore("127.0.0.1", server.port, 100, False, wait_for_workers=True)
    assert client.join() == n + 2
    assert b"init/" not in client.list_keys()


# ---------------------------------------------------------------- lists and sizes


def test_multi(client, torch_store, name):
    keys = [name + b"%d" % i for i in range(4)]
    client.multi_set({key: b"v" * i for i, key in enumerate(keys)})
    assert client.multi_get(keys, 60000) == [b"", b"v", b"vv", b"vvv"]
    assert torch_store.multi_get([key.decode() for key in keys]) == [b"", b"v", b"vv", b"vvv"]
    assert client.multi_get([], 60000) == []
    client.multi_set({})
    client.ping()


def test_many_keys(client, torch_store, name):
    keys = [name + b"%05d" % i for i in range(20000)]
    client.multi_set({key: key[-5:] for key in keys})
    assert client.multi_get(keys, 60000) == [key[-5:] for key in keys]
    client.wait(keys, 60000)
    assert client.check(*keys)
    assert set(keys) <= client.list_keys()
    for key in keys[::1000]:
        assert client.delete(key)
    assert not client.check(*keys)


def test_largest_value(client, torch_store, name):
    value = b"\xab" * (8 * MIB)
    client.set(name, value)
    assert client.get(name, 60000) == value
    assert torch_store.get(name.decode()) == value
    assert client.multi_get([name, name, name], 60000) == [value] * 3
    assert client.compare_set(name, value, value) == value
    assert client.delete(name)


def test_value_too_long(client, libuv_only, name):
    with fails("EMSGSIZE"):
        client.set(name, b"x" * (8 * MIB + 1))
    client.ping()


def test_value_grown_by_append(client, libuv_only, name):
    for _ in range(8):
        client.append(name, b"y" * (8 * MIB))
    assert client.get(name, 60000) == b"y" * (64 * MIB)
    assert client.delete(name)


# ---------------------------------------------------------------- waiting


def test_wait_ends_with_the_set(client, torch_store, name):
    started = time.monotonic()
    timer = later(0.2, torch_store.set, name.decode(), "x")
    client.wait([name], 60000)
    assert 0.15 < time.monotonic() - started < 50
    timer.join()
    assert client.get(name, 60000) == b"x"


def test_torch_waits_for_us(client, torch_store, name):
    timer = later(0.2, client.set, name, b"ours")
    assert torch_store.get(name.decode()) == b"ours"
    timer.join()


def test_wait_times_out_and_the_connection_goes_on(client, torch_store, name):
    started = time.monotonic()
    with fails("TIMEOUT") as caught:
        client.wait([name, name + b"2"], 200)
    assert 0.2 <= time.monotonic() - started < 50
    assert "within 200 ms" in caught.value.sentence
    client.ping()
    with fails("TIMEOUT"):
        client.get(name, 50)
    torch_store.set(name.decode(), "x")
    assert client.get(name, 60000) == b"x"
    with fails("TIMEOUT"):
        client.multi_get([name, name + b"2"], 50)
    assert client.add(name + b"n", 1) == 1


def test_interrupted_wait_and_the_connection_goes_on(client, name):
    client.say("get", 80000, name.hex())
    time.sleep(0.2)
    started = time.monotonic()
    client.interrupt()
    with fails("INTERRUPTED"):
        client.answer()
    assert time.monotonic() - started < 50
    client.set(name, b"x")
    assert client.get(name, 60000) == b"x"


def test_releases_that_cross_the_cancel(client, torch_store, name):
    """Time-outs of about the time until the key comes: whatever crosses, the replies stay in step. A busy machine may
    need longer pauses before both ends have been seen."""
    results, i = set(), 0
    while i < 300 or (len(results) < 2 and i < 2000):
        key = name + b"%d" % i
        client.say("wait", i % 3, key.hex())
        time.sleep((i % 7) * 0.0003 * (1 + i // 300 * 10))
        torch_store.set(key.decode(), "x")
        try:
            client.answer()
            results.add("released")
        except StoreError as error:
            assert error.name == "TIMEOUT"
            results.add("timed out")
        i += 1
        assert client.add(name, 1) == i
    assert results == {"released", "timed out"}


def test_barrier(build, server, client, torch_store, name):
    with fails("TIMEOUT"):
        client.barrier(name + b"alone", 2, 100)
    client.say("barrier", 60000, name.hex(), 3)
    with StoreClient(build, "127.0.0.1", server.port) as other:
        other.say("barrier", 60000, name.hex(), 3)
        torch_store.barrier(name.decode(), 3, datetime.timedelta(seconds=60))
        assert other.answer() == []
    assert client.answer() == []
    client.barrier(name, 3, 60000)  # used up: returns at once


# ---------------------------------------------------------------- queues


def test_queue(client, torch_store, libuv_only, name):
    client.queue_push(name, b"one")
    client.queue_push(name, b"")
    client.ping()
    torch_store.queue_push(name.decode(), "three")
    assert torch_store.queue_len(name.decode()) == 3  # the push has no reply
    assert client.queue_len(name) == 3
    assert client.queue_pop(name, 60000) == b"one"
    assert torch_store.queue_pop(name.decode()) == b""
    assert client.queue_pop(name, 0) == b"three"
    with fails("EMPTY"):
        client.queue_pop(name, 0)
    with fails("TIMEOUT"):
        client.queue_pop(name, 100)
    timer = later(0.2, torch_store.queue_push, name.decode(), "four")
    assert client.queue_pop(name, 60000) == b"four"
    timer.join()


def test_legacy_server_closes_on_queues(client, server, name):
    if server.backend != "legacy":
        pytest.skip("the libuv server has queues")
    with fails("CLOSED"):
        client.queue_len(name)


# ---------------------------------------------------------------- servers that come, stop and go


def test_address_families(build, server, name):
    for host in ["127.0.0.1", "::1", "::ffff:127.0.0.1", "localhost"]:
        with StoreClient(build, host, server.port) as client:
            client.ping()


def test_server_that_comes_later(build, server, torch_distributed):
    port = nodes.free_port()
    clients = []
    thread = threading.Thread(target=lambda: clients.append(
        StoreClient(build, "127.0.0.1", port, connect_timeout_ms=90000, patience=100)))
    thread.start()
    time.sleep(0.5)
    with contextlib.closing(TorchServer(server.backend, port)):
        thread.join(100)  # the server's import of torch takes its time on a busy machine
        with clients[0] as client:
            assert client.add(b"k", 1) == 1


def test_server_that_stops_answering(build, server, torch_distributed):
    with contextlib.closing(TorchServer(server.backend)) as stopped:
        with StoreClient(build, "127.0.0.1", stopped.port) as client:
            assert client.add(b"k", 1) == 1
            client.timeout(200)
            stopped.process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, stopped.process.pid, os.WSTOPPED)  # until then its threads may still answer
            try:
                for _ in range(2):
                    started = time.monotonic()
                    with fails("TIMEOUT"):
                        client.add(b"k", 1)
                    assert 0.2 <= time.monotonic() - started < 50
            finally:
                stopped.process.send_signal(signal.SIGCONT)
            client.timeout(60000)
            assert client.add(b"k", 1) == 3  # the first of the two had been sent


def test_server_that_goes_while_we_wait(build, server, torch_distributed):
    gone = TorchServer(server.backend)
    with StoreClient(build, "127.0.0.1", gone.port) as client:
        client.say("get", 80000, "6b")
        time.sleep(0.2)
        started = time.monotonic()
        gone.close()
        with fails("CLOSED"):
            client.answer()
        assert time.monotonic() - started < 50


def test_what_listens_is_no_store(build):
    with socket.create_server(("127.0.0.1", 0)) as web:
        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = web.accept()
                    with connection:
                        connection.recv(100)
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        threading.Thread(target=serve, daemon=True).start()
        with fails("TIMEOUT") as caught:
            StoreClient(build, "127.0.0.1", web.getsockname()[1], connect_timeout_ms=3000)
        assert "does not answer as a TCPStore" in caught.value.sentence
