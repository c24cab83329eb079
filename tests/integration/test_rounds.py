"""The rounds behind sockets: crund and agents that say frame by frame what a test wants."""

import json
import os
import pathlib
import re
import signal
import socket
import struct
import time

import pytest

from crund import Closed, Crund, message
from jobs import wait_until
from session_agent import OPENING, Agent

BUILD = pathlib.Path(os.environ.get("CRUN_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))


@pytest.fixture
def crund():
    with Crund(BUILD) as c:
        yield c
        assert c.process.poll() is None, c.log()


def agents(crund, n, **params):
    return [Agent(crund.port, min_nodes=n, max_nodes=n, **params) for _ in range(n)]


def start_all(nodes):
    return [n.start() for n in nodes]


def logged(crund, pattern, timeout=60):
    assert wait_until(lambda: re.search(pattern, crund.log()), timeout), f"{pattern} is not in:\n{crund.log()}"


# ---- a job


def test_a_job_from_gathering_to_success(crund):
    a, b = agents(crund, 2)
    assert a.join().view()["ready"] == 1
    b.join()
    views = start_all([a, b])
    assert [v["place"]["group_rank"] for v in views] == [0, 1]
    assert [v["place"]["rank_base"] for v in views] == [0, 2]
    assert all(v["generation"] == 0 and v["place"]["world_size"] == 4 for v in views)
    assert all(v["place"]["master_addr"] == "127.0.0.1" and v["place"]["master_port"] == 20000 for v in views)
    b.fail(rank=3, exit_code=-11)
    stop = a.view("stop")
    assert stop["cause"]["rank"] == 3 and stop["cause"]["exit_code"] == -11
    assert stop["cause"]["host"] == b.who["host"]
    for n in (a, b):
        n.say("ready")
    assert [v["generation"] for v in start_all([a, b])] == [1, 1]
    for n in (a, b):
        n.say("done")
    ends = [n.view("end") for n in (a, b)]
    assert [e["verdict"] for e in ends] == ["success", "success"]
    logged(crund, r"job 'job': generation 0 runs: 2 nodes, 4 workers")
    logged(crund, r"generation 0 is over: rank 3 \(local rank 0\) on node\d+ was ended by signal 11")
    logged(crund, r"generation 1 runs")
    logged(crund, r"job 'job': succeeded \(restarts 1 of 3")


def test_progress_is_told_once_a_second_on_both_sides(crund):
    a, b, _ = agents(crund, 3, job="slow")
    a.who["node_rank"], b.who["node_rank"] = 0, 2
    begin = time.monotonic()  # views may have waited for a while when they are read
    a.join()
    b.join()
    while (v := a.view("wait"))["ready"] < 2 or not v.get("missing"):
        pass
    assert v["missing"] == [1]
    for _ in range(2):
        a.view("wait")
    assert time.monotonic() - begin > 0.9
    logged(crund, r"job 'slow': 2/3 nodes; missing node ranks: 1")


def test_jobs_are_isolated_by_id(crund):
    one, two = agents(crund, 2, job="one"), agents(crund, 2, job="two")
    for n in one + two:
        n.join()
    views = start_all(one + two)
    assert len({v["instance"] for v in views}) == 2
    one[0].fail(rank=0)
    one[1].view("stop")
    two[0].alive()
    assert two[0].frame() is None, "the other job hears nothing but the answer"


def test_budget_is_the_jobs(crund):
    nodes = agents(crund, 2, max_restarts=1)
    for n in nodes:
        n.join()
    start_all(nodes)
    for generation, failing in enumerate(nodes):
        failing.fail(rank=2 * generation)
        if generation == 0:
            nodes[1].view("stop")
            for n in nodes:
                n.say("ready")
            start_all(nodes)
    nodes[0].view("stop")
    nodes[0].say("ready")
    ends = [n.view("end") for n in nodes]
    assert [e["verdict"] for e in ends] == ["failure", "failure"]
    assert ends[0]["cause"] == ends[1]["cause"] and ends[0]["cause"]["rank"] == 2
    logged(crund, r"job 'job': failed: rank 2 .* \(restarts 1 of 1")


def test_a_silent_node_is_lost(crund):
    """Its connection stays open: only silence tells."""
    a, b = agents(crund, 2, node_timeout_ms=2500)
    a.join()
    b.join()
    start_all([a, b])
    a.socket.settimeout(0.1)
    stop = None
    deadline = time.monotonic() + 60
    while stop is None and time.monotonic() < deadline:
        a.alive()
        try:
            v = a.frame()
            stop = v if v and v["view"] == "stop" else None
        except TimeoutError:
            pass
    assert stop["cause"]["kind"] == "lost" and stop["cause"]["host"] == b.who["host"]
    logged(crund, r"is over: node\d+ \(node 1\) was lost: nothing was received from it for \d+ ms")


def test_a_stopped_daemon_blames_nobody(crund):
    nodes = agents(crund, 2, node_timeout_ms=4000)
    for n in nodes:
        n.join()
    start_all(nodes)
    crund.process.send_signal(signal.SIGSTOP)
    for _ in range(10):
        time.sleep(0.5)
        for n in nodes:
            n.alive()
    crund.process.send_signal(signal.SIGCONT)
    for n in nodes:
        for _ in range(10):
            assert n.frame() is None, crund.log()
    assert "lost" not in crund.log()


def test_a_connection_may_break_anywhere(crund):
    a, b = agents(crund, 2)
    a.join()
    b.join()
    start_all([a, b])
    a.close()
    assert a.join().view()["view"] == "continue"
    b.close()
    a.fail(rank=0)
    assert b.join().view()["view"] == "stop", "what it missed is what it is told"
    for n in (a, b):
        n.say("ready")
    assert {v["generation"] for v in start_all([a, b])} == {1}


def test_a_new_connection_replaces_the_old_one(crund):
    a, b = agents(crund, 2)
    b.join()
    a.join().view()
    old = a.socket
    a.socket = None
    a.join()
    start_all([a, b])
    old.settimeout(60)
    while old.recv(4096):
        pass
    old.close()
    a.alive()
    assert a.frame() is None


# ---- refusals


@pytest.mark.parametrize(
    "change, words",
    [
        ({"params": {"max_restarts": 9}}, "max-restarts is 3 in the job and 9 on this node"),
        ({"workers": 5000}, "'workers' is not a whole number between 1 and 4096"),
        ({"hello": 2}, "speaks version 2 of the agent session and this rendezvous version 1"),
        ({"params": {"min_nodes": 3}}, "MIN <= MAX"),
        ({"job": 17}, "'job'"),
    ],
    ids=["params", "workers", "version", "nodes", "job"],
)
def test_refused_with_a_sentence(crund, change, words):
    first, second = agents(crund, 2)
    first.join()
    params = {**second.params, **change.pop("params", {})}
    second.join(params=params, **change)
    v = second.view()
    assert v["view"] == "refused" and words in v["cause"]["text"]
    with pytest.raises(Closed):
        second.frame()
    first.alive()
    while first.frame() is not None:
        pass


def test_limits_of_jobs_and_nodes():
    with Crund(BUILD, "--max-jobs=2", "--max-nodes=2", "--max-agents=3") as c:
        nodes = [Agent(c.port, job=j, min_nodes=3, max_nodes=3) for j in ("a", "a", "b")]
        for n in nodes:
            assert n.join().view()["view"] == "wait"
        for job, words in (("a", "has 2 nodes already"), ("b", "3 nodes in all jobs"), ("c", "2 jobs already")):
            v = Agent(c.port, job=job, min_nodes=3, max_nodes=3).join().view()
            assert v["view"] == "refused" and words in v["cause"]["text"], v


def test_another_version_is_told_ours(crund):
    a = Agent(crund.port).connect()
    a.send(OPENING.replace(b"1", b"7"))
    assert a.read(len(OPENING)) == OPENING
    with pytest.raises(Closed):
        a.read(1)
    logged(crund, r"agent, client .* speaks version 7 of the agent session and this rendezvous version 1")


@pytest.mark.parametrize(
    "said, words",
    [
        (b"\xc5crux/1\n", "began like an agent of crun and went on otherwise"),
        (OPENING + struct.pack("<I", 16385), "sent a frame of 16385 bytes"),
        (OPENING + struct.pack("<I", 0xFFFFFFFF), "sent a frame of 4294967295 bytes"),
        (OPENING + struct.pack("<I", 3) + b"{{{", "is not JSON"),
        (OPENING + struct.pack("<I", 2) + b"{}", "cannot be understood"),
        (OPENING + struct.pack("<I", 9000) + b"[" * 9000, "is not JSON"),
    ],
    ids=["opening", "long", "longest", "json", "report", "nested"],
)
def test_hostile_bytes_cost_one_connection(crund, said, words):
    good = agents(crund, 2)[0]
    good.join()
    a = Agent(crund.port).connect()
    a.send(said)
    a.socket.settimeout(60)
    try:
        while a.socket.recv(65536):
            pass
    except ConnectionResetError:
        pass
    logged(crund, words)
    good.alive()
    while good.frame() is not None:
        pass


def test_no_hello_in_time():
    with Crund(BUILD, "--handshake-timeout=1.5") as c:
        a = Agent(c.port).connect()
        a.send(OPENING + struct.pack("<I", 500) + b"{")
        assert a.read(len(OPENING)) == OPENING
        with pytest.raises(Closed):
            a.read(1)
        logged(c, "sent no hello within")


def test_frames_in_any_slices(crund):
    a = Agent(crund.port).connect()
    text = json.dumps(a.hello()).encode()
    for byte in OPENING + struct.pack("<I", len(text)) + text + struct.pack("<I", 0):
        a.send(bytes([byte]))
    assert a.read(len(OPENING)) == OPENING
    assert a.view("start")


def test_an_agent_that_does_not_read_is_cut_off(crund):
    """It asks for a view again and again; what waits for it is bounded, and its node is not lost by that."""
    a = Agent(crund.port, min_nodes=2, max_nodes=2)
    a.connect()
    a.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    a.send(OPENING)
    a.send_body(a.hello())
    report = json.dumps({"report": a.report}).encode()
    many = (struct.pack("<I", len(report)) + report) * 1000
    a.socket.settimeout(60)
    with pytest.raises(Closed):
        for _ in range(10000):
            a.send(many)
    logged(crund, "does not read its views")
    assert a.join().view()["view"] == "wait"
    assert crund.rss_kib() < 200 * 1024


# ---- beside the store


def test_store_and_rounds_share_the_port(crund):
    a = Agent(crund.port, min_nodes=2, max_nodes=2).join()
    with crund.client() as c:
        c.set("k", "v")
        assert c.get("k") == b"v"
        c.send(OPENING)
        c.read(len(OPENING))
    a.alive()
    while a.frame() is not None:
        pass


def test_an_agent_after_unread_replies_is_no_agent(crund):
    with crund.client(rcvbuf=4096) as c:
        c.set("k", b"x" * (4 << 20))
        for _ in range(16):
            c.send(message("GET", "k"))
        c.send(OPENING)
        assert c.is_closed(60)


def debug_facts(crund):
    """What --debug printed, without times, descriptors and addresses."""
    lines = re.findall(r"^crund: \d+\.\d{6} (conn .*|event .*|action .*)$", crund.log(), re.M)
    lines = [re.sub(r"conn \d+", "conn", re.sub(r" by client \S+| host \S+", "", line)) for line in lines]
    return [line for line in lines if "alive" not in line and line != "event timer"]


def test_debug_prints_every_event_and_action():
    with Crund(BUILD, "--debug") as crund:
        a = Agent(crund.port, min_nodes=1, max_nodes=1, job="debug")
        a.join().start()
        a.say("done")
        assert a.view("end")["verdict"] == "success"
        a.say("left")
        a.close()
        assert wait_until(lambda: "event disconnected" in crund.log()), crund.log()
        assert wait_until(lambda: "action forget" in crund.log()), crund.log()
        assert debug_facts(crund) == [
            "conn opened",
            "event hello conn job debug attempt 1 phase ready generation -1",
            "action save job debug running generation 0 nodes 1",
            "action log job debug running generation 0 nodes 1",
            "action send conn start generation 0 group_rank 0",
            "event report conn phase running generation 0",
            "event report conn phase done generation 0",
            "action save job debug closed generation 0 nodes 1",
            "action log job debug closed generation 0 nodes 1",
            "action send conn end generation 0 verdict success",
            "event report conn phase left generation 0",
            "action close conn",
            "conn shut down",
            "action forget job debug closed generation 0 nodes 0",
            "conn closed",
            "event disconnected conn",
        ]


def test_nothing_is_printed_for_debugging_by_default(crund):
    a = Agent(crund.port, min_nodes=1, max_nodes=1)
    a.join().start()
    assert debug_facts(crund) == []


def test_sigterm_does_not_end_jobs():
    with Crund(BUILD) as crund:
        a, b = agents(crund, 2)
        a.join()
        b.join()
        start_all([a, b])
        crund.process.send_signal(signal.SIGTERM)
        for n in (a, b):
            with pytest.raises(Closed):
                n.frame()
            n.close()
        assert crund.process.wait(60) == 0
        assert "failed" not in crund.log()
