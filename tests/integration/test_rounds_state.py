"""crund --state: what survives kill -9, and what a damaged directory does. Mostly over unix sockets, whose address is
still there after a restart."""

import json
import os
import pathlib
import random
import re
import resource
import shutil
import subprocess
import threading
import time

import pytest

import nodes as lib
from crund import Closed, Crund
from jobs import wait_until
from session_agent import Agent

BUILD = pathlib.Path(os.environ.get("CRUN_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))


class Place:
    """A state directory and a socket, with one daemon after the other."""

    def __init__(self, folder):
        self.state = folder / "state"
        self.socket = str(folder / "s")
        self.daemon = None

    def start(self, *options):
        self.daemon = Crund(BUILD, "--listen-unix", self.socket, "--state", str(self.state), *options, listen=())
        self.daemon.__enter__()
        return self.daemon

    def kill(self):
        if self.daemon:
            self.daemon.__exit__()

    def restart(self, *options):
        self.kill()
        return self.start(*options)

    def files(self):
        return sorted(self.state.glob("job-*.json"))

    def job(self):
        (path,) = self.files()
        head, rest = path.read_bytes().split(b"\n", 1)
        assert re.fullmatch(rb"crun-rounds 1 [0-9a-f]{16} %08x" % len(rest), head)
        return json.loads(rest)

    def logged(self, pattern):
        assert wait_until(lambda: re.search(pattern, self.daemon.log()), 60), self.daemon.log()


@pytest.fixture
def place(tmp_path):
    p = Place(tmp_path)
    yield p
    p.kill()


def run_pair(place, **params):
    nodes = [Agent(place.socket, min_nodes=2, max_nodes=2, **params) for _ in range(2)]
    for n in nodes:
        n.join()
    for n in nodes:
        n.start()
    return nodes


def next_generation(nodes):
    for n in nodes:
        if n.report["phase"] != "ready":
            n.say("ready")
    return [n.start() for n in nodes]


def test_what_an_agent_is_told_is_on_disk(place):
    place.start()
    a, b = run_pair(place)
    saved = place.job()
    assert saved["state"] == "running" and saved["generation"] == 0 and len(saved["nodes"]) == 2
    a.fail(rank=0)
    b.view("stop")
    next_generation([a, b])
    assert place.job()["generation"] == 1 and place.job()["restarts"] == 1


def test_a_running_job_survives_kill_9(place):
    place.start()
    nodes = run_pair(place)
    place.restart("--grace=60")
    place.logged(r"1 jobs with 2 nodes were restored; nodes have 60 s to return")
    for n in nodes:
        v = n.join().view()
        assert v["view"] == "continue" and v["generation"] == 0
    for n in nodes:
        n.say("done")
    assert [n.view("end")["verdict"] for n in nodes] == ["success", "success"]


def test_a_failure_while_nobody_listened(place):
    place.start()
    a, b = run_pair(place)
    place.restart("--grace=60")
    b.report.update(phase="failed", age_ns=10**9, cause={"kind": "worker", "rank": 3, "local_rank": 1, "exit_code": 9})
    b.join()
    v = a.join().view("stop")
    assert v["cause"]["rank"] == 3
    assert {v["restarts"] for v in next_generation([a, b])} == {1}


def test_budgets_survive(place):
    place.start()
    a, b = run_pair(place, max_restarts=1)
    a.fail(rank=0)
    b.view("stop")
    next_generation([a, b])
    place.restart("--grace=60")
    for n in (a, b):
        assert n.join().view()["view"] == "continue"
    a.fail(rank=0)
    b.view("stop")
    b.say("ready")
    assert [n.view("end")["verdict"] for n in (a, b)] == ["failure", "failure"]


def test_a_node_that_does_not_return_is_lost_after_the_grace(place):
    place.start()
    nodes = [Agent(place.socket, min_nodes=1, max_nodes=2, last_call_ms=60000, node_timeout_ms=2500) for _ in range(2)]
    for n in nodes:
        n.join()
    a, b = nodes
    for n in nodes:
        n.start()
    begin = time.monotonic()
    place.restart("--grace=3")
    a.join()
    a.socket.settimeout(0.1)
    while time.monotonic() < begin + 60:
        a.alive()
        try:
            v = a.frame()
            if v and v["view"] == "stop":
                break
        except TimeoutError:
            pass
    assert v["cause"]["kind"] == "lost" and v["cause"]["host"] == b.who["host"]
    assert time.monotonic() - begin > 2.5, "that was before the end of the grace"


def test_a_job_that_is_over_leaves_nothing(place):
    place.start()
    nodes = run_pair(place)
    for n in nodes:
        n.say("done")
    for n in nodes:
        n.view("end")
        n.say("left")
        n.close()
    assert wait_until(lambda: not place.files(), 60), "its file is still there"


def damage_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def damage_tail(path):
    os.truncate(path, path.stat().st_size - 1)


def damage_all(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [damage_bit, damage_tail, damage_all])
def test_damage_is_set_aside_and_the_job_goes_on(place, damage):
    place.start()
    nodes = run_pair(place)
    nodes[0].fail(rank=0)
    nodes[1].view("stop")
    next_generation(nodes)
    place.kill()
    (path,) = place.files()
    damage(path)
    (place.state / (path.name + ".new")).write_bytes(b"half of somethi")
    place.start()
    place.logged(rf"{path.name} is damaged and now named {path.name}\.damaged")
    assert (place.state / (path.name + ".damaged")).exists() and not place.files()
    assert not (place.state / (path.name + ".new")).exists()
    for n in nodes:
        assert n.join().view()["view"] == "stop", "another instance of the job does not know their generation"
    views = next_generation(nodes)
    assert {v["generation"] for v in views} == {2}, "a number that they knew is not given again"
    assert {v["restarts"] for v in views} == {1}, "what they know is charged stays charged"


def crund_fails(place, *options):
    p = subprocess.run(
        [BUILD / "rendezvous" / "crund", "--listen-unix", place.socket + "2", "--state", place.state, *options],
        capture_output=True, text=True, timeout=60)
    assert p.returncode == 1, p.stderr
    return p.stderr


def test_what_is_whole_and_strange_stops_the_start(place):
    place.start()
    run_pair(place)
    place.kill()
    assert "use the release and the limits" in crund_fails(place, "--max-nodes=1")
    assert place.files(), "nothing was thrown away"


def test_one_daemon_for_a_directory(place):
    place.start()
    assert "is used by another rendezvous" in crund_fails(place)


def test_a_directory_that_cannot_be_made(place):
    place.state = place.state / "deeper"
    assert "cannot be created: No such file" in crund_fails(place)


def test_a_disk_that_is_gone_stops_nobody(place):
    place.start()
    a, b = run_pair(place)
    shutil.rmtree(place.state)
    a.fail(rank=0)
    b.view("stop")
    assert {v["generation"] for v in next_generation([a, b])} == {1}
    place.logged(r"cannot be written: No such file or directory; it goes on")


# ---- kill -9 at any moment


class Node(threading.Thread):
    """An agent that lives by what it is told, and redials when it is not told anything."""

    def __init__(self, path, worlds, stop, seed, **params):
        super().__init__(daemon=True)
        self.agent = Agent(path, timeout=5, **params)
        self.worlds, self.stop, self.random = worlds, stop, random.Random(seed)
        self.verdict, self.error = None, None

    def follow(self, v):
        a = self.agent
        if v["view"] == "start" and v["generation"] > a.report.get("generation", -1):
            self.worlds.append((v["instance"], v["generation"], v["place"]["group_rank"], v["place"]["world_size"],
                                v["place"]["master_port"], v.get("restarts", 0)))
            a.report = {"phase": "running", "instance": v["instance"], "generation": v["generation"], "port": 20000,
                        "group_rank": v["place"]["group_rank"], "restarts": v.get("restarts", 0)}
            a.send_body({"report": a.report})
        elif v["view"] == "stop" and v["generation"] == a.report.get("generation"):
            a.say("ready")
        elif v["view"] in ("end", "refused"):
            self.verdict = v

    def live(self):
        a = self.agent
        a.join()
        while not self.verdict:
            a.socket.settimeout(self.random.uniform(0.05, 0.2))
            try:
                v = a.frame()
                if v:
                    self.follow(v)
            except TimeoutError:
                a.alive()
                if a.report["phase"] == "running" and self.stop.is_set():
                    a.say("done")
                elif a.report["phase"] == "running" and self.random.random() < 0.1:
                    a.fail(rank=2 * a.report["group_rank"])

    def run(self):
        while not self.verdict and not self.error:
            try:
                self.live()
            except (Closed, OSError):
                time.sleep(0.02)
            except Exception as e:  # a test's thread must not die in silence
                self.error = e
        self.agent.close()


def test_kill_9_at_any_moment(place):
    """Never two worlds of one generation, no charge forgotten, and the job ends well."""
    worlds, stop, n_kills = [], threading.Event(), int(os.environ.get("CRUN_TEST_KILLS", 12))
    place.start("--grace=20")
    nodes = [Node(place.socket, worlds, stop, i, min_nodes=3, max_nodes=3, max_restarts=100000) for i in range(3)]
    for n in nodes:
        n.start()
    for seed in range(n_kills):
        time.sleep(random.Random(seed).uniform(0.05, 0.6))
        place.restart("--grace=20")
    stop.set()
    for n in nodes:
        n.join(60)
        assert not n.error and n.verdict, (n.error, n.agent.report, place.daemon.log())
    assert {n.verdict["verdict"] for n in nodes} == {"success"}, [n.verdict for n in nodes]
    assert len({w[0] for w in worlds}) == 1, "the job is the same one all the time"
    assert len({w[1:3] for w in worlds}) == len(worlds), "a rank was given twice"
    by_generation = {}
    for _, generation, _, *world in worlds:
        assert by_generation.setdefault(generation, world) == world
    generations = sorted(by_generation)
    assert generations, "not even one generation ran"
    restarts = [by_generation[g][2] for g in generations]
    assert restarts == sorted(restarts) and restarts[-1] >= len(generations) - 1


# ---- under a real job


def test_workers_notice_nothing_of_kill_9(tmp_path):
    """Three crun; their daemon is killed and started again, twice, and then given longer than the grace."""
    port, end, fail = lib.free_port(), tmp_path / "end", tmp_path / "fail"
    script = ("echo RANK $RANK GENERATION $CRUN_GENERATION; "
              f"while [ ! -e {end} ]; do [ -e {fail}$RANK.$CRUN_GENERATION ] && exit 3; sleep 0.05; done")
    daemon = ["--state", str(tmp_path / "state"), "--grace=4"]
    where = (f"127.0.0.1:{port}",)

    def seen(nodes, generation):
        return [m for n in nodes for m in re.findall(rf"RANK \d GENERATION {generation}\n", n.text())]

    with lib.Nodes(tmp_path) as nodes:
        c = Crund(BUILD, *daemon, listen=where).__enter__()
        try:
            for _ in range(3):
                nodes.crun("--nnodes=3", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job",
                           "--max-restarts=1", "--no-python", "sh", "-c", script)
            assert wait_until(lambda: len(seen(nodes, 0)) == 3, 60), nodes.texts() + c.log()
            for seconds in (1, 5):
                c.__exit__()
                c = Crund(BUILD, *daemon, listen=where).__enter__()
                time.sleep(seconds)
                assert "lost" not in c.log() and "is over" not in c.log(), c.log()
            (tmp_path / "fail1.0").touch()
            assert wait_until(lambda: len(seen(nodes, 1)) == 3, 60), nodes.texts() + c.log()
            assert len(seen(nodes, 0)) == 3, "workers of generation 0 were started once"
            assert re.search(r"generation 1 runs: 3 nodes, 3 workers, .*restarts 1 of 1, membership changes 0 of", c.log())
            end.touch()
            assert nodes.codes() == [0, 0, 0], nodes.texts() + c.log()
        finally:
            c.__exit__()


def test_the_limit_of_file_size_stops_no_job(tmp_path):
    """RLIMIT_FSIZE 0: the state cannot be saved, which a line reports, and the daemon and its jobs go on."""

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    # The log of the daemon would be under the limit as well, so it is a pipe.
    with subprocess.Popen([str(BUILD / "rendezvous" / "crund"), "--listen", "127.0.0.1:0", "--state", str(tmp_path / "state")],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=limit) as daemon:
        try:
            port = int(daemon.stdout.readline().rsplit(":", 1)[1])
            with Agent(port) as agent:
                agent.join()
                assert agent.start()["generation"] == 0
            assert any("it goes on" in daemon.stderr.readline() for _ in range(4))
            assert daemon.poll() is None
        finally:
            daemon.kill()
