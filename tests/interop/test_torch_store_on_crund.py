"""PyTorch's own TCPStore client against crund: every operation, errors and time-outs included."""

import datetime
import threading
import time

import pytest

from crund import Crund


@pytest.fixture
def crund(build):
    with Crund(build, listen=("[::]:0",)) as c:
        yield c


def ms(n):
    return datetime.timedelta(milliseconds=n)


@pytest.fixture
def connect(torch_distributed, crund):
    def connect(host="127.0.0.1", timeout=120000, **kwargs):
        return torch_distributed.TCPStore(host, crund.port, is_master=False, timeout=ms(timeout), **kwargs)

    return connect


@pytest.fixture
def store(connect):
    return connect()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_connects(connect, host):
    store = connect(host)
    store.set("k", "v")
    assert store.get("k") == b"v"


def test_set_get(store):
    for value in (b"", b"v", bytes(range(256)), b"x" * (8 << 20)):
        store.set("k", value)
        assert store.get("k") == value
    store.set("", "empty name")
    assert store.get("") == b"empty name"


def test_add(store):
    assert [store.add("n", i) for i in (1, 41, -50)] == [1, 42, -8]
    assert store.get("n") == b"-8"
    store.set("n", " 12x")
    assert store.add("n", 1) == 13


def test_compare_set(store):
    assert store.compare_set("k", "", "first") == b"first"
    assert store.compare_set("k", "first", "second") == b"second"
    assert store.compare_set("k", "first", "third") == b"second"
    assert store.compare_set("missing", "x", "y") == b"x"
    assert not store.check(["missing"])


def test_check_delete_count_list(store):
    assert store.num_keys() == 0 and store.check([]) and not store.check(["a"])
    store.multi_set(["a", "b"], ["1", "2"])
    assert store.check(["a", "b"]) and not store.check(["a", "c"])
    assert sorted(store.list_keys()) == ["a", "b"] and store.num_keys() == 2
    assert store.delete_key("a") and not store.delete_key("a")
    assert store.list_keys() == ["b"]


def test_append(store):
    for part in ("a", "", "bc"):
        store.append("k", part)
    assert store.get("k") == b"abc"


def test_append_beyond_the_message_limit(store):
    for _ in range(8):
        store.append("large", b"x" * (8 << 20))
    assert store.get("large") == b"x" * (64 << 20)


def test_multi(store):
    store.multi_set(["a", "b", "a"], ["1", "2", "3"])
    assert store.multi_get(["b", "a", "b"]) == [b"2", b"3", b"2"]
    assert store.multi_get([]) == []
    names = [f"k{i}" for i in range(5000)]
    store.multi_set(names, [n * 3 for n in names])
    assert store.multi_get(names) == [(n * 3).encode() for n in names]


def test_wait_times_out_and_goes_on(store, torch_distributed):
    with pytest.raises(torch_distributed.DistStoreError, match="wait timeout after 200ms, keys: /a, /b"):
        store.wait(["a", "b"], ms(200))
    with pytest.raises(torch_distributed.DistStoreError):
        store.wait(["a"], ms(0))
    store.set("a", "1")
    store.wait(["a"], ms(60000))
    store.set_timeout(ms(200))
    with pytest.raises(torch_distributed.DistStoreError):
        store.get("nowhere")
    store.set_timeout(ms(60000))
    assert store.get("a") == b"1"


def test_wait_is_released_by_others(store, connect):
    other = connect()
    for release in (
        lambda: other.set("k", "v"),
        lambda: other.add("k", 1),
        lambda: other.append("k", "v"),
        lambda: other.multi_set(["k"], ["v"]),
        lambda: other.compare_set("k", "", "v"),
        lambda: other.queue_push("k", "v"),
    ):
        timer = threading.Timer(0.05, release)
        timer.start()
        store.wait(["k"], ms(60000))
        timer.join()
        store.delete_key("k")
        assert store.queue_len("k") == 0 or store.queue_pop("k") == b"v"


def test_queues(store, connect, torch_distributed):
    for item in ("one", "", "three"):
        store.queue_push("q", item)
    assert store.queue_len("q") == 3
    assert [store.queue_pop("q") for _ in range(3)] == [b"one", b"", b"three"]
    with pytest.raises(torch_distributed.QueueEmptyError):
        store.queue_pop("q", block=False)
    other = connect()
    timer = threading.Timer(0.05, lambda: other.queue_push("q", "late"))
    timer.start()
    assert store.queue_pop("q") == b"late"
    timer.join()
    store.set_timeout(ms(100))
    with pytest.raises(torch_distributed.DistStoreError):
        store.queue_pop("q")


def test_queue_feeds_many(connect, torch_distributed):
    """Each item goes to one of the poppers, none is lost. A blocked pop may find that another client was
    faster between its release and its pop: PyTorch's protocol has that race, and an error for it."""
    n, got, lock = 4, [], threading.Lock()

    def pop():
        mine = connect()
        n_mine = 0
        while n_mine < 10:
            try:
                item = mine.queue_pop("work")
            except torch_distributed.QueueEmptyError:
                continue
            n_mine += 1
            with lock:
                got.append(int(item))

    threads = [threading.Thread(target=pop) for _ in range(n)]
    for t in threads:
        t.start()
    pusher = connect()
    for i in range(10 * n):
        pusher.queue_push("work", str(i))
        if i % 3 == 0:
            time.sleep(0.005)
    for t in threads:
        t.join(120)
    assert sorted(got) == list(range(10 * n))


def test_barrier(store, connect, torch_distributed):
    others = [connect() for _ in range(3)]
    threads = [threading.Thread(target=o.barrier, args=("b", 4, ms(60000))) for o in others]
    for t in threads:
        t.start()
    store.barrier("b", 4, ms(60000))
    for t in threads:
        t.join(120)
        assert not t.is_alive()
    with pytest.raises(torch_distributed.DistStoreError, match="barrier timeout"):
        store.barrier("alone", 2, ms(100))
    store.barrier("alone", 2, ms(60000))


def test_prefix_store(store, torch_distributed):
    nested = torch_distributed.PrefixStore("q", torch_distributed.PrefixStore("p", store))
    nested.set("k", "v")
    assert store.get("p/q/k") == b"v"
    assert nested.add("n", 2) == 2
    assert nested.list_keys() and nested.check(["k"])
    nested.barrier("door", 1, ms(60000))
    assert nested.delete_key("k")


def test_clone(store):
    copy = store.clone()
    waiter = threading.Thread(target=store.wait, args=(["k"], ms(60000)))
    waiter.start()
    copy.set("k", "v")
    waiter.join(60)
    assert not waiter.is_alive()


def test_world_size_counts_clients(connect):
    stores = [connect(world_size=3) for _ in range(3)]
    assert stores[0].num_keys() == 1  # "init/"


@pytest.mark.parametrize("bad", [lambda s: s.set("k", b"x" * (8 << 20) + b"x"), lambda s: s.get("k" * 8192)])
def test_too_long_ends_only_that_client(store, connect, torch_distributed, crund, bad):
    other = connect()
    with pytest.raises(torch_distributed.DistNetworkError):
        bad(store)
        store.num_keys()
    other.set("k", "v")
    assert other.get("k") == b"v"
    assert "longer than the limit" in crund.log()


def test_add_on_text_ends_only_that_client(store, connect, torch_distributed, crund):
    other = connect()
    other.set("text", "hello")
    other.get("text")
    with pytest.raises(torch_distributed.DistNetworkError):
        store.add("text", 1)
    assert other.get("text") == b"hello"
    assert "not a number in ADD" in crund.log()


def test_server_gone(store, crund, torch_distributed):
    store.set("k", "v")
    assert crund.stop() == 0
    with pytest.raises(torch_distributed.DistNetworkError):
        store.get("k")
