"""crun on several nodes that meet at a rendezvous: three launchers on this machine, one of which serves it."""

import contextlib
import fcntl
import os
import pty
import re
import signal
import socket
import struct
import sys
import termios
import time

import pytest

import jobs
import nodes as lib
from crund import Crund
from session_agent import Agent

pytestmark = pytest.mark.sanitize

ALL_COME = "last_call_timeout=60"  # no test waits for it: the first generation begins with the last of MAX nodes

SHOW = "echo GENERATION $CRUN_GENERATION COUNT $TORCHELASTIC_RESTART_COUNT RANK $RANK/$WORLD_SIZE AT $MASTER_ADDR:$MASTER_PORT; "


def options(port, *more, nnodes=3, conf="", host="127.0.0.1", silence_ms=None):
    conf = ",".join([conf] * bool(conf) + [f"node_timeout_ms={silence_ms}"] * bool(silence_ms))
    return [f"--nnodes={nnodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={host}:{port}", "--rdzv-id=job",
            f"--rdzv-conf={conf}", *more]


def start(nodes, n, port, script, *more, **settings):
    for _ in range(n):
        nodes.crun(*options(port, *more, **settings), "--no-python", "sh", "-c", SHOW + script)


def start_behind_host(nodes, n, port, *args, **settings):
    """The first one serves the rendezvous."""
    start(nodes, 1, port, *args, **settings)
    jobs.wait_for(lambda: lib.can_connect(port))
    start(nodes, n - 1, port, *args, **settings)


def shown(nodes):
    """(generation, restart count, rank, world size), sorted, and the set of stores by generation."""
    lines = [m.groups() for n in nodes for m in re.finditer(
        r"GENERATION (\d+) COUNT (\d+) RANK (\d+)/(\d+) AT (\S+)", n.text())]
    stores = {}
    for generation, *_, at in lines:
        stores.setdefault(int(generation), set()).add(at)
    return sorted(tuple(map(int, line[:4])) for line in lines), stores


def wait_for_generation(nodes, generation, n_ranks, timeout=60):
    def there():
        return sum(line[0] == generation for line in shown(nodes)[0]) == n_ranks
    try:
        jobs.wait_for(there, timeout, 0.01)
    except AssertionError:
        raise AssertionError(f"generation {generation} has not begun on all nodes\n{nodes.texts()}") from None


def test_success(tmp_path):
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        start(nodes, 3, port, "true", "--nproc-per-node=2")
        assert nodes.codes() == [0, 0, 0], nodes.texts()
        lines, stores = shown(nodes)
        assert lines == [(0, 0, rank, 6) for rank in range(6)]
        assert len(stores[0]) == 1 and re.fullmatch(r"127\.0\.0\.1:\d+", stores[0].pop())


def test_a_failure_restarts_all_and_the_budget_is_the_jobs(tmp_path):
    """Rank 1 fails in generation 0, rank 2 in generation 1; there is one restart for both."""
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        at = f"{tmp_path}/at.$CRUN_GENERATION"  # nobody fails before all have shown themselves
        start(nodes, 3, port, f"touch {at}.$RANK; [ $RANK = $((CRUN_GENERATION + 1)) ] || exec sleep 600; "
                              f"while [ ! -e {at}.0 -o ! -e {at}.1 -o ! -e {at}.2 ]; do sleep 0.02; done; exit $((40 + RANK))",
              "--max-restarts=1")
        assert nodes.codes() == [1, 1, 1], nodes.texts()
        lines, stores = shown(nodes)
        assert lines == [(g, g, rank, 3) for g in (0, 1) for rank in range(3)]
        assert stores[0] != stores[1] and len(stores[1]) == 1
        summaries = [n.text()[n.text().index("crun: the job has failed on all nodes"):] for n in nodes]
        assert re.match(rf"crun: the job has failed on all nodes: rank 2 \(local rank 0\) on {socket.gethostname()} "
                        r"failed with exit code 42\ncrun: the only restart is used\n", summaries[0]), summaries[0]
        assert "rank      : 2 (local_rank: 0)" in summaries[0] and "exitcode  : 42 (pid: " in summaries[0]
        # The same words everywhere, but for the second in which a node heard of it.
        assert len({re.sub(r"time +: \S+", "", text) for text in summaries}) == 1


def test_exit_code_of_the_worker_on_every_node(tmp_path):
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        start(nodes, 2, port, "[ $RANK = 1 ] && kill -9 $$$$; exec sleep 600", "--exit-code=worker", nnodes=2)
        assert nodes.codes() == [137, 137], nodes.texts()


def test_exit_code_of_a_program_that_cannot_be_executed(tmp_path):
    """126 on every node, as on one: the file is there."""
    port = lib.free_port()
    program = tmp_path / "program"
    program.write_text("neither a program nor a script")
    program.chmod(0o755)
    with lib.Nodes(tmp_path) as nodes:
        for _ in range(2):
            nodes.crun(*options(port, "--exit-code=worker", nnodes=2), "--no-python", program)
        assert nodes.codes() == [126, 126], nodes.texts()


@pytest.mark.parametrize("number, words", [(signal.SIGKILL, "was lost"), (signal.SIGINT, "left: it was stopped by SIGINT")])
def test_lost_node_is_named_when_too_few_are_left(tmp_path, number, words):
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        start_behind_host(nodes, 2, port, "exec sleep 600", "--max-restarts=3", nnodes=2, conf="join_timeout=4")
        wait_for_generation(nodes, 0, 2)
        nodes[1].signal(number)
        nodes[0].wait_for("crun: 1/2 nodes")
        text = nodes[0].text()
        line = next(line for line in text.splitlines() if "waiting for enough nodes to go on" in line)
        assert words in line and f"{socket.gethostname()} (node 1)" in line, text
        assert text.count("waiting for enough nodes") == 1
        assert nodes[0].wait(60) == 1


def test_node_that_lacks_processes_for_a_moment_stays(tmp_path):
    """A start that failed for that is charged as a restart, and no node leaves."""
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        for i in range(2):
            nodes.crun(*options(port, "--max-restarts=2", "--restart-pause=0", nnodes=2), "--no-python", "sh", "-c", SHOW + "sleep 0.5",
                       env=jobs.preload("scarce_machine", SCARCE="_Fork", SCARCE_AT=1) if i else None)
        assert nodes.codes() == [0, 0], nodes.texts()
        assert "its workers could not be started: Resource temporarily unavailable" in nodes[0].text(), nodes.texts()
        assert "killed from outside" not in nodes[0].text() and " left" not in nodes[0].text(), nodes.texts()
        assert [line[:2] for line in shown(nodes)[0]][-2:] == [(1, 1), (1, 1)], nodes.texts()


def check_announcement(tmp_path, environment):
    port = lib.free_port()
    saves = f"trap 'sleep 3; echo SAVED; exit 0' TERM; touch {tmp_path}/up; while :; do sleep 0.05; done"
    script = f"{SHOW}[ $RANK = 0 ] || {{ until [ -e {tmp_path}/up ]; do sleep 0.005; done; exit 7; }}; {saves}"
    with lib.Nodes(tmp_path) as nodes:
        for i in range(2):
            nodes.crun(*options(port, f"--node-rank={i}", nnodes=2), "--no-python", "sh", "-c", script, env=None if i else environment)
        nodes[0].wait_for("failed with exit code 7; stopping the workers of this node, up to 30 s\n")
        assert "SAVED" not in nodes[0].text() and "rank 1 (local rank 0) on " in nodes[0].text()
        assert nodes.codes() == [1, 1], nodes.texts()
        assert "SAVED" in nodes[0].text() and "RANK 0/2" in nodes[0].text()


def test_failure_of_another_node_is_announced_at_once(tmp_path):
    """Before the workers of this node have ended: they may take their whole grace."""
    check_announcement(tmp_path, {})


def test_failure_of_another_node_is_announced_before_the_start_is_reported(tmp_path):
    """On a busy machine it is faster than the guardian's report that the workers of this node have started."""
    check_announcement(tmp_path, jobs.preload("late_guardian", LATE_GUARDIAN_SEND_MS=500))


def test_lost_node_is_in_the_event_log(tmp_path):
    """What happened to other nodes, once each: a worker of one failed, one left, the job ended without enough of them."""
    port = lib.free_port()
    script = f"[ $CRUN_GENERATION = 0 -a $RANK = 1 ] && exit 7; touch {tmp_path}/up.$CRUN_GENERATION.$RANK; exec sleep 600"
    with lib.Nodes(tmp_path) as nodes:
        for i in range(2):
            nodes.crun(*options(port, "--max-restarts=3", "--node-rank", i, f"--event-log={tmp_path}/log{i}", nnodes=2,
                                conf="join_timeout=3"), "--no-python", "sh", "-c", script)
            jobs.wait_for(lambda: lib.can_connect(port))
        jobs.wait_for(lambda: all((tmp_path / f"up.1.{rank}").exists() for rank in range(2)))
        nodes[1].signal(signal.SIGKILL)
        assert nodes[0].wait(60) == 1
    log = jobs.whole_lines(tmp_path / "log0")
    peers = [(e["cause"], e.get("peer_group_rank"), e.get("peer_rank"), e["generation"]) for e in log if e["event"] == "peer"]
    assert peers == [("worker", 1, 1, 0), ("lost", 1, None, 1), ("closed", None, None, 1)], log
    lost = [e for e in log if e.get("cause") == "lost"][0]
    assert lost["peer_host"] == socket.gethostname() and "was lost" in lost["reason"]
    assert log[-1]["event"] == "end" and "1 of at least 2 nodes were there" in log[-1]["reason"]
    assert "peer" not in [e["event"] for e in jobs.whole_lines(tmp_path / "log1") if e["generation"] == 0]


def test_waiting_node_names_what_it_waits_for(tmp_path):
    """The job, the endpoint, the names, the time that is left; another job at the same rendezvous; a node that was refused."""
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        nodes.crun(*options(port, nnodes=2, conf="join_timeout=30"), "--no-python", "true")
        nodes[0].wait_for("crun: 1/2 nodes")
        assert re.search(rf"crun: 1/2 nodes of job 'job' at 127\.0\.0\.1:{port}: {socket.gethostname()}; \d+ s left\n", nodes[0].text())
        assert f"crun: 127.0.0.1:{port} leads each machine to itself" in nodes[0].text()
        other = [word if not word.startswith("--rdzv-id") else "--rdzv-id=other" for word in options(port, nnodes=2)]
        nodes.crun(*other, "--no-python", "true")
        nodes.crun(*options(port, "--max-restarts=3", nnodes=2, conf="join_timeout=30"), "--no-python", "true")
        nodes[0].wait_for("crun: nodes of other jobs wait at the same rendezvous: 'other'; this one waits for nodes with --rdzv-id=job\n")
        nodes[0].wait_for(f"crun: a node was refused: {socket.gethostname()}: max-restarts is 0 in the job and 3 there")
        nodes[1].wait_for("wait at the same rendezvous: 'job'")


def test_waiting_line_is_redrawn_on_a_terminal():
    """One line, as wide as the terminal at most, that the next one replaces."""
    port, pid = lib.free_port(), 0
    try:
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ["TERM"] = "xterm"
            os.execv(jobs.crun(), [jobs.crun(), *options(port, nnodes=2, conf="join_timeout=4"), "--no-python", "true"])
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
        seen = b""
        with contextlib.suppress(OSError):  # EIO at the end
            while piece := os.read(terminal, 4096):
                seen += piece
        assert os.waitpid(pid, 0)[1] >> 8 == 1
        pid = 0
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
    redrawn = re.findall(rb"\r\x1b\[K(crun: 1/2 nodes[^\r\n]*)(?=\r\x1b\[K)", seen)
    assert len(redrawn) >= 2 and all(len(line) == 59 for line in redrawn), seen


def test_waiting_is_not_reported_each_second(tmp_path):
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        nodes.crun(*options(port, nnodes=2, conf="join_timeout=8"), "--no-python", "true")
        assert nodes[0].wait(60) == 1
        assert nodes[0].text().count("crun: 1/2 nodes") == 3, nodes[0].text()  # after 1, 3 and 7 s


def test_workers_of_other_nodes_are_noticed(tmp_path):
    """Over the notice socket, before the signal, with the global rank and how it ended."""
    port = lib.free_port()
    worker = tmp_path / "worker.py"
    worker.write_text("import os, signal, socket, struct, sys, time\n"
                      "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                      f"folder, rank = {str(tmp_path)!r}, os.environ['RANK']\n"
                      "open(f'{folder}/ready{rank}', 'w').close()\n"
                      "if rank == '3':\n"
                      "    while not all(os.path.exists(f'{folder}/ready{r}') for r in range(3)):\n"
                      "        time.sleep(0.01)\n"
                      "    os._exit(9)\n"
                      "s = socket.socket(fileno=int(os.environ['CRUN_NOTICE_FD']))\n"
                      "notice = ' '.join(map(str, struct.unpack('<IIIii', s.recv(100))))\n"
                      "os.write(1, f'NOTICE {rank} {notice}\\n'.encode())\n")  # in one piece: others write to the file, too
    with lib.Nodes(tmp_path) as nodes:
        for _ in range(2):
            nodes.crun(*options(port, "--nproc-per-node=2", nnodes=2), worker, env={"PYTHON_EXEC": sys.executable})
        assert nodes.codes() == [1, 1], nodes.texts()
        notices = sorted(line.split()[1:] for n in nodes for line in n.text().splitlines() if line.startswith("NOTICE"))
        assert notices == [[str(rank), "20", "1", "0", "3", "9"] for rank in range(3)]


def test_killed_agent_is_replaced_by_a_late_one(tmp_path):
    """MIN are left, so the others go on with two; a third one that comes later makes it three again. The guardian says that
    the agent is gone: its silence would be noticed in an hour."""
    port = lib.free_port()
    more = {"nnodes": "2:3", "conf": ALL_COME, "silence_ms": 3600000}
    with lib.Nodes(tmp_path) as nodes:
        start_behind_host(nodes, 3, port, "exec sleep 600", **more)
        wait_for_generation(nodes, 0, 3)
        workers = list(jobs.workers(nodes[2].pid).values())
        nodes[2].signal(signal.SIGKILL)
        wait_for_generation(nodes, 1, 2)
        jobs.wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in workers))
        start(nodes, 1, port, "exec sleep 600", **more)
        wait_for_generation(nodes, 2, 3)
        lines, _ = shown(nodes)
        assert [line[1:] for line in lines if line[0] == 1] == [(0, 0, 2), (0, 1, 2)]  # no restart was charged
        assert [line[1:] for line in lines if line[0] == 2] == [(0, 0, 3), (0, 1, 3), (0, 2, 3)]
        said = (r"\(node \d\) was lost: its crun ended without a message, and its workers were killed; goes on as "
                r"generation 1 with 2 nodes \(0/0 restarts used\)")
        jobs.wait_for(lambda: re.search(said, nodes[0].text()))


def test_stopped_agent_is_lost_and_joins_again(tmp_path):
    """SIGSTOP: silent for longer than node_timeout_ms. When it goes on, it stops its old workers and comes back."""
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        start_behind_host(nodes, 3, port, "exec sleep 600", nnodes="2:3", conf=ALL_COME)
        wait_for_generation(nodes, 0, 3)
        nodes[2].signal(signal.SIGSTOP)
        wait_for_generation(nodes, 1, 2)
        nodes[2].signal(signal.SIGCONT)
        wait_for_generation(nodes, 2, 3)
        jobs.wait_for(lambda: sum(len(jobs.workers(n.pid)) for n in nodes) == 3)


@pytest.mark.parametrize("who", ["guest", "host"])
def test_told_to_stop_and_the_others_go_on(tmp_path, who):
    """The node leaves, as MIN are left; when it is the one with the rendezvous, the job ends with that reason."""
    port = lib.free_port()
    more = {"nnodes": "2:3", "conf": ALL_COME}
    with lib.Nodes(tmp_path) as nodes:
        start_behind_host(nodes, 3, port, "exec sleep 600", **more)
        wait_for_generation(nodes, 0, 3)
        nodes[0 if who == "host" else 2].signal(signal.SIGTERM)
        if who == "host":
            assert nodes.codes() == [1, 1, 1], nodes.texts()
            assert "the node that serves the rendezvous goes away: it was stopped by SIGTERM" in nodes[1].text()
        else:
            assert nodes[2].wait(60) == 1
            wait_for_generation(nodes, 1, 2)
            nodes[0].wait_for("left: it was stopped by SIGTERM; goes on as generation 1 with 2 nodes")


@pytest.mark.parametrize("who", [0, 2])
def test_told_to_stop_when_all_are_needed(tmp_path, who):
    """SIGTERM to one node: the workers of all are asked to stop, all nodes say so and exit alike."""
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        saves = "trap 'echo SAVED; exit 0' TERM; echo ARMED; while :; do sleep 0.1; done"
        start_behind_host(nodes, 3, port, saves, "--max-restarts=3")
        for n in nodes:
            n.wait_for("ARMED")
        nodes[who].signal(signal.SIGTERM)
        assert nodes.codes() == [1, 1, 1], nodes.texts()
        for n in nodes:
            assert "SAVED" in n.text() and "start the job again to go on" in n.text(), nodes.texts()


@pytest.mark.parametrize("host", ["[::1]", "localhost", socket.gethostname()])
def test_endpoints_by_name_and_of_ipv6(tmp_path, host):
    """Whatever the own name resolves to on this machine. MASTER_ADDR is numeric."""
    try:
        socket.getaddrinfo(host.strip("[]"), 0)
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as e:
        pytest.skip(f"this machine does not know {host}: {e}")
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        start(nodes, 2, port, "true", nnodes=2, host=host)
        assert nodes.codes() == [0, 0], nodes.texts()
        at, = shown(nodes)[1][0]
        assert re.fullmatch(r"[0-9a-f.:]+", at), at


def test_a_node_of_an_earlier_release_has_another_default(tmp_path):
    """It does not send the origin of its node timeout of 1 s. With the larger one it is lost after 3 s of silence, and not before."""
    with Crund(jobs.build_folder()) as crund, lib.Nodes(tmp_path) as nodes, \
            Agent(crund.port, min_nodes=2, max_nodes=2, max_restarts=0, max_changes=1000, join_timeout_ms=600000,
                  last_call_ms=30000, node_timeout_ms=1000) as earlier:
        earlier.params["lease_auto"] = 1
        earlier.join()
        nodes.crun(*options(crund.port, "--security=open", nnodes=2), "--no-python", "sleep", "600")
        earlier.start()
        nodes[0].wait_for("was lost: nothing was received from it for 3")


def test_killed_host_of_the_rendezvous_comes_back(tmp_path):
    """Those that are left keep their workers and redial; with the new one they go on where they were."""
    port = lib.free_port()
    more = {"nnodes": "2:3", "conf": ALL_COME}
    with lib.Nodes(tmp_path) as nodes:
        start_behind_host(nodes, 3, port, "exec sleep 600", **more)
        wait_for_generation(nodes, 0, 3)
        workers = [pid for n in nodes[1:] for pid in jobs.workers(n.pid).values()]
        nodes[0].signal(signal.SIGKILL)
        for n in nodes[1:]:
            n.wait_for("was lost (")
        assert all(map(os.path.exists, (f"/proc/{pid}" for pid in workers)))
        start(nodes, 1, port, "exec sleep 600", **more)
        wait_for_generation(nodes, 1, 3)


# ---------------------------------------------------------------- what else may be at the endpoint


def test_refusals_are_one_sentence_each(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as mute, Crund(jobs.build_folder()) as crund, lib.Nodes(tmp_path) as nodes:
        nodes.crun(*options(mute.getsockname()[1]), "--no-python", "true")
        nodes.crun(*options(lib.free_port(), conf="join_timeout=1,is_host=0"), "--no-python", "true")
        nodes.crun(*options(1, host="nosuch.invalid", conf="join_timeout=1"), "--no-python", "true")
        nodes.crun(*options(crund.port, nnodes=2), "--no-python", "true")
        nodes[3].wait_for("1/2 nodes")
        nodes.crun(*options(crund.port, "--max-restarts=5", "--security=open", nnodes=2), "--no-python", "true")
        for number, words in ((1, "could not be reached for 1 s"), (2, "the name cannot be looked up"),
                              (4, "max-restarts is 0 in the job and 5 on this node")):
            assert nodes[number].wait(60) == 1 and words in nodes[number].text(), nodes.texts()
        assert len(nodes[4].text().splitlines()) == 1, nodes.texts()
        assert "trying again for 0 s" not in nodes.texts()
        start(nodes, 1, lib.free_port(), "true", conf="join_timeout=2", nnodes=2)
        nodes[5].wait_for("crun: 1/2 nodes")
        assert nodes[5].wait(60) == 1
        assert "1 of at least 2 nodes were there when the join timeout of 2 s ran out" in nodes[5].text(), nodes.texts()
        nodes[0].wait_for("something else may be listening there")


def test_two_jobs_on_one_daemon(tmp_path):
    with Crund(jobs.build_folder()) as crund, lib.Nodes(tmp_path) as nodes:
        for job in "ab":
            for _ in range(2):
                nodes.crun("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{crund.port}",
                           f"--rdzv-id={job}", "--no-python", "sh", "-c", f"{SHOW} [ ${{RANK}}{job} != 1b ]")
        assert nodes.codes() == [0, 0, 1, 1], nodes.texts()


def test_prefix_has_the_rank_in_the_whole_job(tmp_path):
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        start_behind_host(nodes, 2, port, "sleep 0.1", "-t1", "--nproc-per-node=2", "--log-line-prefix-template=${hostname}:$rank ",
                          nnodes=2, conf=ALL_COME)
        assert nodes.codes() == [0, 0]
        host = os.uname().nodename
        for node in nodes:
            lines = re.findall(r"^(\S+):(\d) GENERATION .* RANK (\d)/4", node.text(), re.M)
            assert len(lines) == 2 and all(name == host and prefix == rank for name, prefix, rank in lines)


# One rank fails with an error file. The others end on SIGTERM without one: crun looks for theirs all the same.
FAILS_ONCE = ("[ $CRUN_GENERATION = 0 ] || exit 0; "
              "[ $RANK = 5 ] && sleep 0.3 && { echo '{\"message\": \"ValueError: boom\"}' > $TORCHELASTIC_ERROR_FILE; exit 3; }; exec sleep 1000")


def slow_error_files(ms):
    return {**os.environ, **jobs.preload("slow_disk", SLOW_DISK="error.json", SLOW_DISK_OPEN_MS=ms)}


def test_a_disk_that_is_slow_costs_one_restart_and_no_node(tmp_path):
    """A node with 32 workers, whose error files take 100 ms each: with a node timeout of a second."""
    port = lib.free_port()
    with Crund(jobs.build_folder(), listen=(f"127.0.0.1:{port}",)), lib.Nodes(tmp_path) as nodes:
        for n_workers, ms in (32, 100), (1, 100):
            nodes.crun(*options(port, "--max-restarts=3", f"--nproc-per-node={n_workers}", nnodes="1:2", silence_ms=1000, conf="last_call_timeout=60"),
                       "--no-python", "sh", "-c", SHOW + FAILS_ONCE, env=slow_error_files(ms))
        assert nodes.codes() == [0, 0], nodes.texts()
        assert {line[0] for line in shown(nodes)[0]} == {0, 1} and len(shown(nodes)[0]) == 66, nodes.texts()
        text = nodes[0].text() + nodes[1].text()
        assert "lost" not in text and "waiting for" not in text, text
        assert all("ValueError: boom" in n.text() for n in nodes), nodes.texts()


def test_last_lines_are_those_of_the_first_failure(tmp_path):
    """Also where others fail while its report waits for a slow disk."""
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        nodes.crun(*options(port, "-r3", "--nproc-per-node=4", nnodes="1:2", conf="last_call_timeout=1"),
                   "--no-python", "sh", "-c", "sleep 0.0$RANK; echo the reason of $RANK >&2; exit 1", env=slow_error_files(20))
        assert nodes.codes() == [1], nodes.texts()
        first = re.search(r"rank (\d) .*failed first", nodes[0].text())
        assert first, nodes.texts()
        assert f"crun:   | the reason of {first.group(1)}\n" in nodes[0].text(), nodes.texts()


def test_sigterm_is_obeyed_while_error_files_are_read(tmp_path):
    with lib.Nodes(tmp_path) as nodes:
        nodes.crun("--standalone", "--nproc-per-node=32", "--no-python", "sh", "-c", "echo READY; exec sleep 1000", env=slow_error_files(100))
        jobs.wait_for(lambda: nodes[0].text().count("READY") == 32)
        began = time.monotonic()
        nodes[0].signal(signal.SIGTERM)
        assert nodes[0].wait() == 1
        assert time.monotonic() - began < 2  # all files one after the other take 3.2 s
