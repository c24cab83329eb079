"""crun --agent-fd: the rendezvous for agents that are other programs; here the test is the agent."""

import contextlib
import json
import pathlib
import socket
import subprocess
import time

import pytest

import jobs
from crund import Crund

pytestmark = pytest.mark.sanitize


class Agent:
    """A foreign agent and its crun."""

    def __init__(self, port, *options, nnodes="2", log=None):
        ours, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [jobs.crun(), f"--agent-fd={theirs.fileno()}", f"--nnodes={nnodes}", "--rdzv-backend=c10d",
             f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job", "--rdzv-conf=last_call_timeout=1",
             *options], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, pass_fds=[theirs.fileno()])
        theirs.close()
        ours.settimeout(30)
        self.socket, self.lines = ours, ours.makefile("r")

    def send(self, **command):
        with contextlib.suppress(BrokenPipeError):  # the job may have ended meanwhile
            self.socket.sendall(json.dumps(command).encode() + b"\n")

    def event(self, kind):
        event = json.loads(self.lines.readline())
        assert event["event"] == kind, event
        return event

    def close(self):
        self.lines.close()
        self.socket.close()

    def code(self):
        """Its exit code and what it wrote."""
        _, err = self.process.communicate(timeout=30)
        return self.process.returncode, err


@pytest.fixture
def agents(tmp_path):
    """agents(n, ...) starts n of them at one daemon."""
    started = []
    with Crund(jobs.build_folder(), f"--listen-unix={tmp_path}/crund") as daemon:
        def start(n, *options, **more):
            started.extend(Agent(daemon.port, *options, **more) for _ in range(n))
            return started[-n:]

        start.port, start.daemon = daemon.port, daemon
        yield start
        for agent in started:
            agent.process.kill()
            agent.process.communicate()
            agent.close()


def n_sessions(port):
    """Connections that the daemon at this port has."""
    table = pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(row.split()[1].endswith(f":{port:04X}") and row.split()[3] == "01" for row in table)


def begin(agents):
    """All are ready; their places by group rank."""
    for agent in agents:
        agent.send(do="ready")
    starts = {agent: agent.event("start") for agent in agents}
    assert sorted(start["group_rank"] for start in starts.values()) == list(range(len(agents)))
    assert len({(start["master_addr"], start["master_port"], start["generation"]) for start in starts.values()}) == 1
    return starts


def test_success(agents):
    two = agents(2)
    starts = begin(two)
    place = starts[two[0]]
    with socket.create_connection((place["master_addr"], place["master_port"]), timeout=10) as store:
        store.sendall(bytes.fromhex("00cef7853c0d01020304"))  # VALIDATE and PING of a client of PyTorch
        assert store.recv(4) == bytes.fromhex("01020304")
    for agent in two:
        agent.send(do="done")
    assert [agent.event("end")["exit_code"] for agent in two] == [0, 0]
    assert [agent.code()[0] for agent in two] == [0, 0]


def test_failure_of_one_begins_a_round_with_an_empty_store(agents):
    a, b = agents(2)
    first = begin([a, b])
    a.send(do="failed", text="boom")
    assert "boom" in b.event("stop")["cause"]
    second = begin([a, b])
    assert second[a]["generation"] == first[a]["generation"] + 1
    assert second[a]["master_port"] != first[a]["master_port"] and "boom" in second[b]["cause"]
    assert second[a]["group_rank"] == first[a]["group_rank"]
    a.send(do="failed", fatal=True, text="no more")
    assert "no more" in b.event("stop")["cause"]
    b.send(do="ready")
    ends = [agent.event("end") for agent in (a, b)]
    assert [end["exit_code"] for end in ends] == [1, 1] and all("no more" in end["cause"] for end in ends)


def test_agent_that_ends_is_known_at_once(agents):
    """The node timeout is ten seconds."""
    a, b = agents(2, nnodes="1:2")
    begin([a, b])
    a.close()
    assert "its agent has ended" in b.event("stop")["cause"]
    assert a.code()[0] == 1
    b.send(do="ready")
    start = b.event("start")
    assert (start["group_rank"], start["group_world_size"]) == (0, 1)


def test_late_node_and_spare_node(agents):
    a, b = agents(2, nnodes="1:2")
    a.send(do="ready")
    assert a.event("start")["group_world_size"] == 1
    b.send(do="ready")
    a.event("stop")
    a.send(do="ready")
    assert {agent.event("start")["group_world_size"] for agent in (a, b)} == {2}
    spare, = agents(1, nnodes="1:2")
    spare.send(do="ready")
    jobs.wait_for(lambda: n_sessions(agents.port) == 3)
    time.sleep(0.5)  # for its hello, which follows at once
    for agent in (a, b):
        agent.send(do="done")
    ends = [agent.event("end") for agent in (a, b, spare)]
    assert [end["exit_code"] for end in ends] == [0, 0, 0], ends


def test_no_mix_with_nodes_of_crun(agents):
    a, = agents(1)
    a.send(do="ready")
    jobs.wait_for(lambda: "1/2 nodes" in agents.daemon.log())  # else the other one could be the first
    p = jobs.run([jobs.crun(), "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{agents.port}", "--rdzv-id=job",
                  "--rdzv-conf=last_call_timeout=1", "--no-python", "true"])
    refused = [line for line in p.stderr.splitlines() if "the launcher is " in line]
    assert p.returncode == 1 and len(refused) == 1 and "is torchrun with --rdzv-backend=crun in the job and crun on this node" in refused[0], p.stderr


def test_a_look_at_the_job_leaves_its_sessions_alone(agents, tmp_path):
    """crun has no status of workers to report here, and the rendezvous does not ask for one."""
    agent, = agents(1, nnodes="1")
    begin([agent])
    p = jobs.run([pathlib.Path(jobs.crun()).parent / "crunctl", "status", f"--endpoint={tmp_path}/crund"])
    assert p.returncode == 0 and "job: running" in p.stdout, p.stdout + p.stderr
    time.sleep(0.5)  # for the lines of a session that is lost
    agent.send(do="done")
    assert agent.event("end")["exit_code"] == 0
    code, err = agent.code()
    assert code == 0 and "was lost" not in err, err


@pytest.mark.parametrize("line", [b"nonsense\n", b'{"do":"dance"}\n', b"x" * 5000 + b"\n"])
def test_line_that_is_no_command(agents, line):
    agent, = agents(1)
    with contextlib.suppress(BrokenPipeError):
        agent.socket.sendall(line)
    code, err = agent.code()
    assert code == 1 and "--agent-fd: a line is no command" in err


def test_wrong_use():
    for words, sentence in ((["--agent-fd=1"], "above 2 is needed"), (["--agent-fd=5"], "needs --rdzv-backend=c10d"),
                            (["--agent-fd=77", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:1"], "has to be a connected socket")):
        p = jobs.run([jobs.crun(), *words])
        assert p.returncode == 1 and sentence in p.stderr, (words, p.stderr)
