"""crund --state=etcd://...: three members of etcd, three crunds, and jobs of two nodes that go on while these are killed."""

import base64
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import pytest

import jobs
import nodes as lib
from crund import Crund
from etcd_crunds import BUILD, Member, open_place
from job_secret import write_secret
from jobs import wait_until
from scrapes import samples, scrape
from session_agent import Agent

MAKE = pathlib.Path(__file__).resolve().parents[1] / "support" / "make_certificates.sh"


@pytest.fixture
def place(tmp_path):
    with open_place(tmp_path) as p:
        yield p


def test_followers_send_nodes_to_the_leader(place):
    follower = next(i for i in range(3) if i != place.leader())
    place.run_job(f"127.0.0.1:{place.ports[follower]}")
    assert "generation 0 runs: 2 nodes" in place.crunds[place.leader()].log()
    place.finish()
    assert [e[2] for e in place.events("start")] == ["0", "0"]


def test_crunctl_finds_the_leader(tmp_path):
    """A follower sends it on, so that the job is found wherever the leader stands in the list; alone it names the leader."""
    secret = str(write_secret(tmp_path / "secret"))
    with open_place(tmp_path, "--secret-file", secret) as place:
        leader, first = place.leader(), next(i for i in range(3) if i != place.leader())
        place.run_job(f"127.0.0.1:{place.ports[leader]}", "--security=require", "--secret-file", secret)

        def ask(*numbers):
            endpoints = ",".join(f"127.0.0.1:{place.ports[i]}" for i in numbers)
            command = [BUILD / "launcher" / "crunctl", f"--secret-file={secret}", f"--endpoint={endpoints}", "status", "j"]
            return subprocess.run(command, capture_output=True, text=True, timeout=60)
        for p in (ask(leader, first), ask(first, leader)):
            assert p.returncode == 0 and "j: running" in p.stdout and p.stderr == "", p
        p = ask(first)
        assert p.returncode == 1 and f"does not lead: 127.0.0.1:{place.ports[leader]} does" in p.stderr, p
        place.finish()


def test_killed_leaders_cost_no_restart(place):
    dead = lib.free_port()
    place.run_job(",".join(f"127.0.0.1:{port}" for port in [dead, *place.ports]))
    place.fail_once(0)
    for turn in range(1, 3):
        old = place.leader()
        place.crunds[old].process.kill()
        assert wait_until(lambda: place.leader() not in (None, old), 60), place.logs()
        place.fail_once(turn)  # the charges so far are known
        place.start_crund(old)
    place.finish()
    assert [e[2] for e in place.events("start")] == ["0", "0", "1", "1", "2", "2", "3", "3"]


def test_a_name_that_is_not_known_keeps_no_other_waiting(place):
    place.run_job(f"no-such-host.invalid:1,127.0.0.1:{place.ports[0]}")
    place.finish()


def test_each_crund_has_a_certificate_of_its_own(tmp_path):
    """The nodes know a follower alone. The leader, to which it sends them, has to name the address in its certificate."""
    made = tmp_path / "certificates"
    subprocess.run([MAKE, made], check=True, stdout=subprocess.DEVNULL, timeout=120)
    names = ("node", "second", "third")
    hosts = [f"127.0.0.{i + 1}" for i in range(3)]

    def files(name):
        return [f"--tls-cert={made}/{name}.pem", f"--tls-key={made}/{name}.key", f"--tls-ca={made}/ca.pem"]

    with open_place(tmp_path, hosts=hosts, own_options=[files(name) for name in names]) as place:
        follower = next(i for i in range(3) if i != place.leader())
        place.run_job(f"{hosts[follower]}:{place.ports[follower]}", "--security=require", *files("next"))
        assert "generation 0 runs: 2 nodes" in place.crunds[place.leader()].log()
        place.finish()


def test_a_killed_follower_and_a_killed_member_cost_nothing(place):
    leader = place.leader()
    place.run_job(f"127.0.0.1:{place.ports[leader]}")
    follower = next(i for i in range(3) if i != leader)
    place.crunds[follower].process.kill()
    next(m for m in place.members if m.leads()).kill()
    place.fail_once(0)  # saved with two members
    place.finish()
    assert [e[2] for e in place.events("start")] == ["0", "0", "1", "1"]


def test_without_a_majority_workers_go_on(place):
    place.run_job(f"127.0.0.1:{place.ports[0]}")
    for m in place.members[:2]:
        m.kill()
    (place.job / "fail.0").touch()
    place.wait_events("fail", 1)
    time.sleep(5)  # longer than the lease: nothing is decided in this time
    assert len(place.events("start")) == 2, place.texts()
    assert all(n.process.poll() is None for n in place.nodes), place.texts()
    for m in place.members[:2]:
        m.start()
    place.wait_events("start", 4)
    place.finish()


COUNTS = """
import os, sys, time
folder, support = sys.argv[1:]
sys.path.insert(0, support)
from crund import Client
me = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["CRUN_GENERATION"]
def note(what):
    with open(f"{folder}/events", "a") as f:
        f.write(" ".join((what, *me)) + "\\n")
client = Client(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
note("start")
while not os.path.exists(f"{folder}/stop"):
    client.add("count of " + me[0], 1)
    if os.path.exists(f"{folder}/look") and not os.path.exists(f"{folder}/looked." + me[0]):
        open(f"{folder}/looked." + me[0], "w").close()
        note("counts")
    time.sleep(0.02)
note("end")
"""


def start_sealed(place, secret, folder, endpoint):
    support = pathlib.Path(__file__).resolve().parents[1] / "support" / "py"
    (folder / "worker.py").write_text(COUNTS)
    for i in range(2):
        place.nodes.append(lib.Node(
            [jobs.crun(), "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}",
             "--rdzv-id=j", "--max-restarts=3", "--seal", f"--secret-file={secret}", folder / "worker.py", folder, support],
            folder / f"node{i}.log", env={"PYTHON_EXEC": sys.executable}))
    place.wait_events("start", 2)


def test_a_leader_that_is_deposed_keeps_the_keys_of_its_nodes(tmp_path):
    """--seal: the store of a job is in the crund that has formed its generation. Without etcd that one leads no more."""
    secret = write_secret(tmp_path / "secret")
    with open_place(tmp_path, "--secret-file", str(secret), "--metrics-addr=0") as place:
        leader = place.leader()
        metrics = int(re.search(r"metrics on port (\d+)", place.crunds[leader].process.stdout.readline()).group(1))
        start_sealed(place, secret, tmp_path, f"127.0.0.1:{place.ports[leader]}")
        for m in place.members:
            m.kill()
        assert wait_until(lambda: not place.says_it_leads(leader), 60), place.logs()
        (tmp_path / "look").touch()
        place.wait_events("counts", 2)  # requests are replied to
        found = samples(scrape(metrics)[2])
        assert found["crun_job_stores", ()] == 1 and found["crun_job_store_bytes", ()] > 0
        for m in place.members:
            m.start()
        assert wait_until(lambda: place.leader() is not None, 120), place.logs()
        place.finish()
        assert [e[2] for e in place.events("start")] == ["0", "0"], place.texts()


def test_a_killed_crund_with_the_keys_costs_its_job_one_restart(tmp_path):
    """--seal: its clients are closed when another crund leads, a line of the crun that finds it first names the reason, and the next generation has keys."""
    secret = write_secret(tmp_path / "secret")
    with open_place(tmp_path, "--secret-file", str(secret)) as place:
        start_sealed(place, secret, tmp_path, ",".join(f"127.0.0.1:{port}" for port in place.ports))
        old = place.leader()
        place.crunds[old].process.kill()
        began = time.monotonic()
        place.wait_events("start", 4)
        assert time.monotonic() - began < 25, "not after the half minute for which a node looks for its store"
        assert place.leader() not in (None, old), place.logs()
        (tmp_path / "look").touch()
        place.wait_events("counts", 2)  # requests are replied to
        place.finish()
        assert [e[2:] for e in place.events("start")] == [["0", "0"]] * 2 + [["1", "1"]] * 2, place.texts()
        assert [e[2:] for e in place.events("end")] == [["1", "1"]] * 2, place.texts()
        lost = re.compile(r"the keys of this node's workers, which the rendezvous at \S+ keeps, are lost \(.*\): their connections")
        named = [bool(lost.search(node.text())) for node in place.nodes]
        # The failure of one node's worker may reach the other node before that one has asked for its keys.
        other = re.compile(r"rank \d \(local rank 0\) on \S+ failed .*; goes on as generation 1")
        assert any(named) and all(ok or other.search(node.text()) for ok, node in zip(named, place.nodes)), place.texts()


def test_a_leader_that_is_stopped_is_replaced_when_its_lease_has_ended(place):
    """Not sooner: it could still decide. Its nodes go to the next one within --grace. Resumed, it leads no more."""
    place.run_job(",".join(f"127.0.0.1:{port}" for port in place.ports))
    old, began = place.leader(), time.monotonic()
    place.crunds[old].process.send_signal(signal.SIGSTOP)
    assert wait_until(lambda: place.leader() not in (None, old), 60), place.logs()
    assert time.monotonic() - began > 2, place.logs()
    time.sleep(8)  # the grace, and more
    place.crunds[old].process.send_signal(signal.SIGCONT)
    assert wait_until(lambda: not place.says_it_leads(old), 60), place.logs()
    place.finish()
    assert [e[2] for e in place.events("start")] == ["0", "0"], place.texts()


def test_a_restarted_crund_leads_again_at_once(place):
    """Alone, at the address where it has led: the lease of the process before is not waited for."""
    leader = place.leader()
    for i in range(3):
        place.crunds[i].process.kill()
        place.crunds[i].process.wait(60)
    place.start_crund(leader)
    assert wait_until(lambda: place.says_it_leads(leader), 60), place.logs()


def test_etcd_that_is_not_there(tmp_path):
    port = lib.free_port()
    with Crund(BUILD, "--state", f"etcd://127.0.0.1:{port}/x", listen=("127.0.0.1:0",)) as crund:
        assert wait_until(lambda: "nothing is decided until it answers" in crund.log(), 60)
        assert crund.stop() == 0


@pytest.fixture
def memory_folder():
    memory = pathlib.Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield pathlib.Path(folder)


@pytest.fixture
def member(memory_folder):
    m = Member(memory_folder, "m", lib.free_port(), lib.free_port(), None)
    yield m
    m.kill()
    m.out.close()


def stored(member, prefix):
    """The keys below the prefix, with their values."""
    encode = lambda text: base64.b64encode(text.encode()).decode()
    kvs = member.ask("kv/range", {"key": encode(prefix), "range_end": encode(prefix[:-1] + "0")}).get("kvs", [])
    return {base64.b64decode(kv["key"]).decode(): kv.get("value") for kv in kvs}


def assert_leads(member, *options):
    url = f"etcd://127.0.0.1:{member.client}/x"
    with Crund(BUILD, "--state", url, *options, listen=("127.0.0.1:0",)) as crund:
        assert wait_until(lambda: "leads, with term" in crund.log(), 60), crund.log()


def assert_does_not_lead(member, what, *options):
    url = f"etcd://127.0.0.1:{member.client}/x"
    with Crund(BUILD, "--state", url, *options, listen=("127.0.0.1:0",)) as crund:
        assert wait_until(lambda: what in crund.log(), 60), crund.log()
        assert "leads, with term" not in crund.log()


def instances(crund, name, n, *phase):
    """Of n new jobs with one node each, which then reports that phase."""
    found = []
    for i in range(n):
        with Agent(crund.port, job=f"{name}{i}") as agent:
            found.append(agent.join().start()["instance"])
            for word in phase:
                agent.say(word)
    return found


def test_a_crund_that_leads_again_gives_no_instance_twice(member):
    """Else a new job would be written over an older one, which the next leader would not find."""
    member.start()
    with Crund(BUILD, "--state", f"etcd://127.0.0.1:{member.client}/x", listen=("127.0.0.1:0",)) as crund:
        assert wait_until(lambda: "leads, with term" in crund.log(), 60), crund.log()
        older = instances(crund, "older", 4, "left")
        kept = instances(crund, "kept", 1)
        member.kill()
        assert wait_until(lambda: "leads no more" in crund.log(), 60), crund.log()
        member.start()
        assert wait_until(lambda: crund.log().count("leads, with term") == 2, 60), crund.log()
        newer = instances(crund, "newer", 5, "left")
        assert len({*older, *kept, *newer}) == 10, crund.log()


def test_a_machine_that_was_suspended_leads_no_more(member, tmp_path):
    """The lease in etcd has ended meanwhile: the clock of the leader goes on during a suspension."""
    member.start()
    skew = tmp_path / "skew"
    skew.write_text("0")
    preload = jobs.preload("skewed_clock", CRUN_TEST_SKEW_FILE=skew, CRUN_TEST_SKEW_BOOTTIME=1)
    with Crund(BUILD, "--state", f"etcd://127.0.0.1:{member.client}/x", "--sandbox=off", listen=("127.0.0.1:0",),
               env=preload) as crund:
        assert wait_until(lambda: "leads, with term" in crund.log(), 60), crund.log()
        skew.write_text("10")
        assert wait_until(lambda: "leads no more: its lease in etcd has run out" in crund.log(), 60), crund.log()
        assert wait_until(lambda: crund.log().count("leads, with term") == 2, 60), crund.log()


def test_jobs_that_a_crund_cannot_use_are_left_to_others(member):
    """Of a newer release, in an upgrade of several crunds in turn, or beyond its limits. It must neither drop nor change them."""
    member.start()
    url = f"etcd://127.0.0.1:{member.client}/x"
    with Crund(BUILD, "--state", url, listen=("127.0.0.1:0",)) as crund:
        assert wait_until(lambda: "leads, with term" in crund.log(), 60), crund.log()
        for job in "first", "second":
            with Agent(crund.port, job=job) as agent:
                agent.join().start()
    jobs_before = stored(member, "/x/jobs/")
    with Crund(BUILD, "--state", url, "--max-jobs=1", listen=("127.0.0.1:0",)) as crund:
        assert wait_until(lambda: "leads no more: it cannot use a job in etcd" in crund.log(), 60), crund.log()
        assert "there are more jobs than the limit allows" in crund.log(), crund.log()
        with Crund(BUILD, "--state", url, listen=("127.0.0.1:0",)) as other:
            assert wait_until(lambda: "2 jobs with 2 nodes were read from etcd" in other.log(), 60), crund.log() + other.log()
        assert crund.log().count("leads, with term") == 1, crund.log()
    assert stored(member, "/x/jobs/").keys() == jobs_before.keys()


def test_user_and_password(member, tmp_path):
    member.start()
    assert wait_until(member.leads, 60)
    for path, body in (("user/add", {"name": "root", "password": "secret"}), ("role/add", {"name": "root"}),
                       ("user/grant", {"user": "root", "role": "root"}), ("enable", {})):
        member.ask(f"auth/{path}", body)
    login, wrong = tmp_path / "login", tmp_path / "wrong"
    login.write_text("root:secret\n")
    wrong.write_text("root:public\n")
    for path in login, wrong:
        path.chmod(0o600)
    assert_leads(member, f"--etcd-login={login}")
    assert_does_not_lead(member, "etcd: ")
    assert_does_not_lead(member, "authentication failed", f"--etcd-login={wrong}")


def crund_that_ends(*options):
    return subprocess.run([BUILD / "rendezvous" / "crund", "--listen=127.0.0.1:0", f"--state=etcd://127.0.0.1:{lib.free_port()}/x",
                           *options], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("text, mode, what", [
    ("root:opensesame", 0o644, "login can be read or changed by all users (mode 0644): chmod o="),
    ("root:opensesame", 0o602, "(mode 0602)"),
    (None, None, "login: No such file or directory"),
    ("root", 0o600, "login: its first line is not USER:PASSWORD"),
    (":opensesame", 0o600, "login: its first line is not USER:PASSWORD"),
    ("root:", 0o600, "login: its first line is not USER:PASSWORD"),
    ("root:" + "s" * 300, 0o600, "login: its first line is not USER:PASSWORD, each of at most 299 bytes"),
])
def test_refused_logins(tmp_path, text, mode, what):
    path = tmp_path / "login"
    if text is not None:
        path.write_text(text + "\n")
        path.chmod(mode)
    done = crund_that_ends(f"--etcd-login={path}")
    assert done.returncode == 1 and what in done.stderr and "opensesame" not in done.stderr, done.stderr


def test_a_key_that_all_users_can_read(tmp_path):
    key = tmp_path / "key"
    key.write_text("no key")
    key.chmod(0o644)
    done = crund_that_ends("--etcd-ca=/ca", "--etcd-cert=/cert", f"--etcd-key={key}")
    assert done.returncode == 1 and "key can be read or changed by all users (mode 0644)" in done.stderr, done.stderr


def test_a_process_with_a_password_is_hidden(memory_folder):
    """The kernel gives the files of a process that leaves no core file to root."""
    user = 65534 if os.geteuid() == 0 else os.geteuid()
    login = memory_folder / "login"
    login.write_text("root:secret\n")
    for path, mode in (memory_folder, 0o700), (login, 0o600):
        path.chmod(mode)
        os.chown(path, user, -1)
    for options, owner in (([], user), ([f"--etcd-login={login}"], 0)):
        with Crund(BUILD, "--state", f"etcd://127.0.0.1:{lib.free_port()}/x", *options, listen=("127.0.0.1:0",),
                   preexec_fn=lambda: os.setuid(user)) as crund:
            assert os.stat(f"/proc/{crund.pid}/mem").st_uid == owner


def test_tls(member, tmp_path):
    subprocess.run(["sh", MAKE, tmp_path], check=True, capture_output=True)
    member.use_tls(tmp_path)
    member.start()
    own = f"--etcd-cert={tmp_path}/node.pem", f"--etcd-key={tmp_path}/node.key"
    assert_leads(member, f"--etcd-ca={tmp_path}/ca.pem", *own)
    assert_does_not_lead(member, "etcd: ", f"--etcd-ca={tmp_path}/other-ca.pem", *own)
    assert_does_not_lead(member, "etcd: ", f"--etcd-ca={tmp_path}/ca.pem")
    assert_does_not_lead(member, "etcd: ")
