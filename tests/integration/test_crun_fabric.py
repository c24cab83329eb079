"""Three hosts in network namespaces, and what happens to one of them: the short form of `tests/soak nodes`. A
network that misbehaves between agents and their rendezvous."""

import signal
import time

import pytest

import fabric as fabrics
import jobs
import nodes as lib
import nodes_campaign as campaign
from crund import Crund
from strict import skip_if


@pytest.fixture(scope="module")
def fabric():
    skip_if(fabrics.missing())
    with fabrics.Fabric(campaign.N_HOSTS) as made:
        yield made


@pytest.fixture(scope="module")
def job(fabric, tmp_path_factory):
    with campaign.Job(fabric, tmp_path_factory.mktemp("job"), node_timeout_ms=2500) as job:
        yield job


@pytest.mark.parametrize("name", campaign.FAULTS)
def test_survivors_are_warned_and_go_on(job, name):
    """Every fault in turn in one job, which ends each with all three hosts in a generation."""
    fault = campaign.FAULTS[name]
    before, _ = job.wait_running(campaign.N_HOSTS, job.newest() - 1)
    restarts = max((line for line in job.nodes[1].text().splitlines() if "restarts used" in line), default="")
    campaign.one_round(job, fault, before)
    assert "refuses this node" not in job.nodes.texts() and "has failed" not in job.nodes.texts(), (restarts, job.nodes.texts())


def test_budget_is_charged_for_failures_alone(job):
    """What went on above: two workers were killed, and nodes were lost four times."""
    used = [line.split("(")[-1] for n in job.nodes for line in n.text().splitlines() if "restarts used" in line]
    assert used and max(int(u.split("/")[0]) for u in used) == 2, used


def test_host_names_and_addresses_of_the_fabric(job):
    text = job.nodes[1].text() + job.nodes[2].text()
    assert "rank 2 (local rank 0) on host2 was ended by signal 9" in text
    assert "host2 (node 2) was lost" in text and "host2 joined" in text


def test_workers_never_notice_a_restart_of_the_daemon(fabric, tmp_path):
    """kill -9 of crund under a running job; it comes back with --state, and the job is the same."""
    (tmp_path / "state").mkdir()
    with campaign.Job(fabric, tmp_path, port=29401, node_timeout_ms=2500, daemon_options=[f"--state={tmp_path}/state"]) as job:
        generation, _ = job.wait_running(campaign.N_HOSTS)
        for _ in range(2):
            before = job.told.read_text()
            job.daemon.finish()
            job.start_daemon()
            for host in range(campaign.N_HOSTS):
                jobs.wait_for(lambda: is_connected(fabric, host))
            time.sleep(3)  # longer than a node may be silent
            assert job.told.read_text() == before
        jobs.kill(job.worker_of(campaign.VICTIM))
        job.wait_running(campaign.N_HOSTS, generation)
        job.hosts[0].wait_for("(1/1000 restarts used)")


def is_connected(fabric, host):
    return ":29401" in fabrics.sh(f"ip netns exec {fabric.space(host)} ss -Htn state established dst {fabric.address(0)}").stdout


# ---------------------------------------------------------------- a network that misbehaves, on loopback


def start_through(proxy, nodes, told):
    for _ in range(2):
        nodes.crun("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{proxy.port}", "--rdzv-id=job",
                   "--rdzv-conf=is_host=0", "--max-restarts=3", "--no-python", campaign.lib_program("notice_watcher"), told)


def wait_lines(told, n):
    jobs.wait_for(lambda: told.exists() and len(told.read_text().splitlines()) >= n, 60, 0.01)


@pytest.mark.parametrize("fault", ["cut", "half-close", "cut short", "slow"])
def test_workers_never_notice_a_broken_connection(tmp_path, fault):
    """The agents redial; what they say then is what they would have said."""
    told = tmp_path / "told"
    with Crund(jobs.build_folder()) as crund, fabrics.FaultProxy(("127.0.0.1", crund.port)) as proxy, \
            lib.Nodes(tmp_path) as nodes:
        proxy.delay = 0.1 if fault == "slow" else 0
        start_through(proxy, nodes, told)
        wait_lines(told, 2)
        before = told.read_text()
        proxy.half_close = fault == "half-close"
        proxy.cut_after = 300 if fault == "cut short" else None  # somewhere in the next hello
        if fault != "slow":
            proxy.cut()
        time.sleep(0.5)
        proxy.half_close, proxy.cut_after = False, None
        time.sleep(0.5)
        assert told.read_text() == before, nodes.texts()
        workers = [pid for n in nodes for pid in jobs.workers(n.pid).values()]
        jobs.kill(workers[0], signal.SIGKILL)
        wait_lines(told, 6)  # the other one is warned and stopped, and both are started
        lines = [line.split() for line in told.read_text().splitlines()[2:]]
        assert sorted(line[0] for line in lines[:4]) == ["notice", "start", "start", "stop"], lines
        jobs.wait_for(lambda: "(1/3 restarts used)" in nodes[0].text() + nodes[1].text())


# ---------------------------------------------------------------- loopback as the endpoint of node 0


@pytest.mark.parametrize("way", ["static", "c10d"])
@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_node_0_is_given_loopback(fabric, tmp_path, way, name):
    """The others have its address: they meet, and workers of other hosts are not sent to their own loopback."""
    show = ["--no-python", "sh", "-c", "echo $RANK of $WORLD_SIZE at $MASTER_ADDR"]
    with lib.Nodes(tmp_path) as nodes:
        for host, endpoint in enumerate([name, fabric.address(0)]):
            place = [f"--master-addr={endpoint}", "--master-port=29555"] if way == "static" else \
                ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}:29555"]
            nodes.crun("--nnodes=2", f"--node-rank={host}", *place, *show, prefix=fabric.prefix(host))
        assert nodes.codes() == [0, 0], nodes.texts()
        at = [name if way == "static" else fabric.address(0), fabric.address(0)]
        assert [f"{host} of 2 at {at[host]}" in nodes[host].text() for host in range(2)] == [True, True], nodes.texts()
