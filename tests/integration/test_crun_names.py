"""What the endpoint may be called, and what names may be like: three hosts in network namespaces, each with an /etc/hosts,
/etc/resolv.conf and /etc/nsswitch.conf of its own."""

import contextlib
import os
import pathlib
import re
import signal
import sys
import time

import pytest

import fabric as fabrics
import jobs
import nodes as lib
from strict import skip_if

ROOT = pathlib.Path(__file__).resolve().parents[2]
MEETS = ROOT / "tests" / "workers" / "meets.py"
LONG = os.environ.get("CRUN_TESTS_SOAK") == "1"  # tests/soak names
N_HOSTS = 3
PORT = 29400
SECOND_NIC = "10.88.0.1"
FILES_ONLY = "hosts: files\n"
WITH_DNS = "hosts: files dns\n"


@pytest.fixture(scope="module")
def fabric():
    """The first host has a second network card, which leads nowhere."""
    skip_if(fabrics.missing())
    with fabrics.Fabric(N_HOSTS) as made:
        space = made.space(0)
        fabrics.sh(f"ip -n {space} link add eth1 type veth peer name nowhere && ip -n {space} link set eth1 up && "
                   f"ip -n {space} link set nowhere up && ip -n {space} addr add {SECOND_NIC}/24 dev eth1")
        yield made


@pytest.fixture
def fabric6():
    """The same hosts without IPv4."""
    skip_if(fabrics.missing())
    with fabrics.Fabric(N_HOSTS) as made:
        for host in range(N_HOSTS):
            fabrics.sh(f"ip -n {made.space(host)} addr del {made.address(host)}/24 dev eth0")
        yield made


def make_etc(folder, host, names="", nsswitch=FILES_ONLY):
    """names: lines of the hosts file."""
    etc = folder / f"etc{host}"
    etc.mkdir()
    (etc / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{names}")
    (etc / "nsswitch.conf").write_text(nsswitch)
    (etc / "resolv.conf").write_text("nameserver 127.0.0.53\noptions timeout:30 attempts:5\n")
    for f in etc.iterdir():
        f.chmod(0o644)
    return etc


def start(nodes, fabric, host, etc, endpoint, *more, conf="last_call_timeout=1", nnodes=N_HOSTS):
    return nodes.crun(f"--nnodes={nnodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=job",
                      f"--rdzv-conf={conf}", f"--node-rank={host}", *more, "--no-python", sys.executable, MEETS,
                      prefix=fabric.prefix_with_etc(host, etc))


def met_at(nodes):
    assert nodes.codes() == [0] * len(nodes), nodes.texts()
    found = [m.group(1) for n in nodes for m in re.finditer(r"MET AT (\S+)", n.text())]
    assert len(found) == len(nodes), nodes.texts()
    return set(found)


@pytest.fixture(params=["open", "fenced"])
def security(request, tmp_path):
    """Options. A fenced store listens at one address, which has to be the one that the other hosts find."""
    if request.param == "open":
        return ["--security=open"]
    secret = tmp_path / "secret"
    secret.write_bytes(b"a secret of the tests, long enough")
    secret.chmod(0o600)
    return [f"--secret-file={secret}"]


CASES = {
    "Debian's 127.0.1.1": ("node0", ["127.0.1.1 node0.cluster node0\n", "10.77.0.1 node0\n", "10.77.0.1 node0\n"]),
    "two cards": ("node0", [f"{SECOND_NIC} node0\n", "10.77.0.1 node0\n", "10.77.0.1 node0\n"]),
    "a short and a long name": ("node0.cluster", ["10.77.0.1 node0 node0.cluster\n", "10.77.0.1 node0.cluster node0\n",
                                                  "10.77.0.1 node0.cluster\n"]),
    "both families": ("node0", ["fd77::1 node0\n10.77.0.1 node0\n"] * 3),
    "IPv4 written as IPv6": ("[::ffff:10.77.0.1]", [""] * 3),
}


@pytest.mark.parametrize("case", CASES)
def test_everybody_meets_where_peers_can_reach(fabric, tmp_path, case, security):
    endpoint, names = CASES[case]
    with lib.Nodes(tmp_path) as nodes:
        for host in range(N_HOSTS):
            start(nodes, fabric, host, make_etc(tmp_path, host, names[host]), f"{endpoint}:{PORT}", *security)
        assert met_at(nodes) <= {fabric.address(0), fabric.address6(0)}, nodes.texts()


@pytest.mark.parametrize("endpoint", ["[fd77::1]", "node0"])
def test_hosts_with_ipv6_alone(fabric6, tmp_path, endpoint, security):
    with lib.Nodes(tmp_path) as nodes:
        for host in range(N_HOSTS):
            start(nodes, fabric6, host, make_etc(tmp_path, host, "fd77::1 node0\n"), f"{endpoint}:{PORT}", *security)
        assert met_at(nodes) == {"fd77::1"}, nodes.texts()


def test_local_addr_counts(fabric, tmp_path, security):
    """Node 0 is not the host of the rendezvous, and says where it is to be found."""
    with lib.Nodes(tmp_path) as nodes:
        for host in range(N_HOSTS):
            start(nodes, fabric, host, make_etc(tmp_path, host), f"{fabric.address(1)}:{PORT}",
                  *security, *([f"--local-addr={fabric.address6(0)}"] if host == 0 else []))
        assert met_at(nodes) == {fabric.address6(0)}, nodes.texts()


def silence_resolver(fabric, host):
    """Whoever asks gets no answer, not even that nobody listens."""
    fabrics.sh(f"ip netns exec {fabric.space(host)} nft 'add table inet test; add chain inet test input "
               "{ type filter hook input priority 0; }; add rule inet test input udp dport 53 drop'")


@pytest.mark.parametrize("resolver", ["none", "nobody there", "silent"])
def test_a_name_that_nobody_knows(fabric, tmp_path, resolver):
    """One sentence says which, why and what to do, within seconds; another one how it ended."""
    if resolver == "silent":
        silence_resolver(fabric, 1)
    try:
        with lib.Nodes(tmp_path) as nodes:
            etc = make_etc(tmp_path, 1, nsswitch=FILES_ONLY if resolver == "none" else WITH_DNS)
            start(nodes, fabric, 1, etc, f"node0:{PORT}", conf=f"join_timeout={3 if resolver == 'none' else 600}")
            nodes[0].wait_for("crun: the name in --rdzv-endpoint node0:29400 cannot be looked up: ")
            nodes[0].wait_for(" in --rdzv-endpoint\n")
            assert re.search(r"crun: the name in --rdzv-endpoint node0:29400 cannot be looked up: .*; trying again for "
                            r"\d+ s; the name has to be known on every node \(/etc/hosts, the resolver in "
                            r"/etc/resolv\.conf\): correct it, or give an address in --rdzv-endpoint\n", nodes[0].text())
            if resolver == "none":
                assert nodes[0].wait(60) == 1
                assert "could not be reached for 3 s (the join timeout): the name cannot be looked up: " in nodes[0].text()
    finally:
        fabric.heal(1)


@pytest.mark.parametrize("round_", range(20 if LONG else 1))
@pytest.mark.parametrize("resolver", ["none", "silent"])
def test_a_name_that_comes_late(fabric, tmp_path, resolver, round_):
    """Everybody starts soon after it is there, though questions that were asked before hang for minutes."""
    etcs = [make_etc(tmp_path, host, nsswitch=WITH_DNS if resolver == "silent" else FILES_ONLY)
            for host in range(N_HOSTS)]
    told = tmp_path / "told"
    told.touch()
    try:
        if resolver == "silent":
            for host in range(N_HOSTS):
                silence_resolver(fabric, host)
        with lib.Nodes(tmp_path) as nodes:
            for host in range(N_HOSTS):
                nodes.crun(f"--nnodes={N_HOSTS}", "--rdzv-backend=c10d", f"--rdzv-endpoint=node0:{PORT}", "--rdzv-id=job",
                           "--rdzv-conf=join_timeout=120", "--no-python",
                           jobs.build_folder() / "tests" / "workers" / "notice_watcher", told,
                           prefix=fabric.prefix_with_etc(host, etcs[host]))
            for node in nodes:
                node.wait_for("cannot be looked up")
            for etc in etcs:
                with open(etc / "hosts", "a") as hosts:  # in place: it is mounted
                    hosts.write("10.77.0.1 node0\n")
            at = time.monotonic_ns()
            jobs.wait_for(lambda: len(told.read_text().splitlines()) == N_HOSTS, 60, 0.01)
            took = (max(int(line.split()[-1]) for line in told.read_text().splitlines()) - at) / 1e9
            print(f"resolver {resolver}: all workers ran {took:.3f} s after the name was there")
            assert took < (1 if LONG else 60), nodes.texts()
    finally:
        for host in range(N_HOSTS):
            fabric.heal(host)


def test_told_to_stop_while_a_question_hangs(fabric, tmp_path):
    silence_resolver(fabric, 1)
    try:
        with lib.Nodes(tmp_path) as nodes:
            start(nodes, fabric, 1, make_etc(tmp_path, 1, nsswitch=WITH_DNS), f"node0:{PORT}")
            nodes[0].wait_for("cannot be looked up")
            at = time.monotonic()
            nodes[0].signal(signal.SIGTERM)
            assert nodes[0].wait(60) == 1
            assert time.monotonic() - at < 60, nodes.texts()
    finally:
        fabric.heal(1)


@pytest.mark.parametrize("resolver", ["none", "silent"])
def test_static_with_a_name_that_comes_late(fabric, tmp_path, resolver):
    etcs = [make_etc(tmp_path, host, nsswitch=WITH_DNS if resolver == "silent" else FILES_ONLY) for host in range(2)]
    try:
        if resolver == "silent":
            for host in range(2):
                silence_resolver(fabric, host)
        with lib.Nodes(tmp_path) as nodes:
            for host in range(2):
                nodes.crun("--nnodes=2", f"--node-rank={host}", "--master-addr=node0", f"--master-port={PORT}",
                           "--no-python", "true", prefix=fabric.prefix_with_etc(host, etcs[host]))
            nodes[1].wait_for("waiting for node 0 at node0 port 29400: ")
            for etc in etcs:
                with open(etc / "hosts", "a") as hosts:
                    hosts.write("10.77.0.1 node0\n")
            assert nodes.codes() == [0, 0], nodes.texts()
    finally:
        for host in range(2):
            fabric.heal(host)


# ---------------------------------------------------------------- network address translation


@pytest.fixture
def translated():
    """Hosts 1 and 2 are behind host 0 of another network, which masquerades: everybody else sees its address."""
    skip_if(fabrics.missing())
    with fabrics.Fabric(2) as outside, fabrics.Fabric(2, network=78) as inside:
        router = outside.space(1)
        fabrics.sh(f"ip -n {inside.hub} link add way type veth peer name inner netns {router} && "
                   f"ip -n {inside.hub} link set way master sw up && "
                   f"ip -n {router} addr add 10.78.0.254/24 dev inner && ip -n {router} link set inner up && "
                   f"ip netns exec {router} sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward' && ip netns exec {router} nft "
                   "'add table ip nat; add chain ip nat post { type nat hook postrouting priority 100; };"
                   "add rule ip nat post oifname eth0 masquerade'")
        for host in range(2):
            fabrics.sh(f"ip -n {inside.space(host)} route add default via 10.78.0.254")
        yield outside, inside


def start_translated(nodes, fabric, host, rank, *more, nnodes=2):
    return nodes.crun(f"--nnodes={nnodes}", "--rdzv-backend=c10d", "--rdzv-endpoint=10.77.0.1:29400", "--rdzv-id=job",
                      "--rdzv-conf=last_call_timeout=1,is_host=0", f"--node-rank={rank}", *more, "--no-python",
                      sys.executable, MEETS, prefix=fabric.prefix(host))


@contextlib.contextmanager
def daemon(fabric, folder):
    (folder / "daemon").mkdir()
    with lib.Nodes(folder / "daemon") as daemons:
        daemons.start([jobs.build_folder() / "rendezvous" / "crund", f"--listen={fabric.address(0)}:{PORT}"],
                      prefix=fabric.prefix(0)).wait_for("listening")
        yield


def test_nodes_behind_one_nat_meet_behind_it(translated, tmp_path):
    """One source address for two nodes, which are told apart all the same and find each other."""
    outside, inside = translated
    with daemon(outside, tmp_path), lib.Nodes(tmp_path) as nodes:
        for host in range(2):
            start_translated(nodes, inside, host, host)
        assert met_at(nodes) == {inside.address(0)}, nodes.texts()


def test_a_master_on_this_side_of_the_nat(translated, tmp_path):
    outside, inside = translated
    with daemon(outside, tmp_path), lib.Nodes(tmp_path) as nodes:
        start_translated(nodes, outside, 0, 0, nnodes=3)
        for host in range(2):
            start_translated(nodes, inside, host, host + 1, nnodes=3)
        assert met_at(nodes) == {outside.address(0)}, nodes.texts()


def start_waiting(nodes, fabric, host, rank, *more):
    return nodes.crun("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=10.77.0.1:29400", "--rdzv-id=job",
                      "--rdzv-conf=is_host=0", f"--node-rank={rank}", *more, "--no-python", "sh", "-c",
                      "echo STARTED; exec sleep 600", prefix=fabric.prefix(host))


def test_a_master_behind_a_nat_is_told_by_the_others(translated, tmp_path):
    """Nothing from outside gets in there. Within 5 s the others say so, and what helps."""
    outside, inside = translated
    with daemon(outside, tmp_path), lib.Nodes(tmp_path) as nodes:
        start_waiting(nodes, inside, 0, 0)
        start_waiting(nodes, outside, 0, 1)
        nodes[1].wait_for("STARTED")
        nodes[1].wait_for("crun: the worker store of this generation cannot be reached from this node at "
                          f"{outside.address(1)}:")
        assert "start node 0 with --local-addr=ADDRESS" in nodes[1].text()
        assert "cannot be reached" not in nodes[0].text() and "worker store:" not in nodes[0].text()


def test_a_local_addr_that_leads_nowhere_is_told(fabric, tmp_path):
    """10.77.0.99 is nobody's. A node that can reach its store is silent, and so is the store."""
    with daemon(fabric, tmp_path), lib.Nodes(tmp_path) as nodes:
        for rank, addr in enumerate(["10.77.0.99", fabric.address(1)]):
            start_waiting(nodes, fabric, rank, rank, f"--local-addr={addr}")
        nodes[1].wait_for("crun: the worker store of this generation cannot be reached from this node at 10.77.0.99:")
        for node in nodes:
            node.finish()
        nodes.clear()
        for rank in range(2):
            start_waiting(nodes, fabric, rank, rank, "--rdzv-id=other")
        for node in nodes:
            node.wait_for("STARTED")
        time.sleep(1.5)  # the question is asked after one
        assert "worker store" not in nodes.texts(), nodes.texts()


def test_end_while_a_name_is_looked_up(tmp_path):
    """The thread stays inside the resolver: no destructor of its libraries may run beside it."""
    hangs, ended = tmp_path / "hangs", tmp_path / "ended"
    hangs.touch()
    p = jobs.run([jobs.crun(), "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=head.invalid:29400", "--rdzv-id=job",
                  "--rdzv-conf=join_timeout=1", "--no-python", "true"], timeout=60,
                 env={**os.environ, **jobs.preload("slow_resolver", SLOW_RESOLVER_HANGS=hangs, SLOW_RESOLVER_ENDED=ended)})
    assert p.returncode == 1 and "head.invalid" in p.stderr, p.stderr
    assert not ended.exists()
