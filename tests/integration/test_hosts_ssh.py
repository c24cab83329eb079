"""crun --hosts over a real sshd: three hosts in network namespaces, where only host0 has crun."""

import concurrent.futures
import hashlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import pytest

import fabric
import hostile_tries
import jobs
import secret_search
import ssh_hosts
import strict
from job_secret import write_secret
from ssh_hosts import SshHosts

HELLO = 'echo "rank $RANK of $WORLD_SIZE at $(hostname) in $PWD"'
HOLD = 'echo "rank $RANK is up"; exec sleep 600'
REFUSED = 1
TRIES = ("read", "write", "join", "steal a rank", "replay", "downgrade", "wrong secret")


def shell(script):
    return ["--no-python", "sh", "-c", script]


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    strict.skip_if(ssh_hosts.missing())
    with SshHosts(tmp_path_factory.mktemp("hosts"), 3, bare=(1, 2)) as hosts:
        yield hosts


@pytest.fixture
def hosts(three):
    """The three hosts, where nothing is left of the test before and after."""
    for host in range(3):
        shutil.rmtree(three.home(host) / ".cache", ignore_errors=True)
    yield three
    assert three.wait_until_empty() == {}
    assert three.files() == []


@pytest.fixture
def repaired(hosts):
    """For tests that change how host2 can be reached."""
    yield hosts
    hosts.passwords.clear()
    (hosts.place(2) / "authorized_keys").write_text(hosts.authorized)
    hosts.configure(2)
    hosts.learn_host_key(2)
    hosts.restart_server(2)


def program_hash():
    return hashlib.sha256(pathlib.Path(jobs.crun()).read_bytes()).hexdigest()


def sentences(text):
    return [line for line in text.replace("\x1b[K", "").splitlines() if line.startswith("crun: ")]


def assert_named(text, *words):
    """One sentence of crun has all these words."""
    assert any(all(word in line for word in words) for line in sentences(text)), text


# ---- a job, and what it needs at the hosts


def test_a_job_of_three_hosts_needs_nothing_installed(hosts):
    p = hosts.crun("--nproc-per-node=2", *shell(HELLO), cwd=hosts.folder)
    assert p.returncode == 0, p.stdout + p.stderr
    expected = {f"rank {rank} of 6 at host{rank // 2} in {hosts.folder}" for rank in range(6)}
    assert sorted(p.stdout.splitlines()) == sorted(expected), p.stdout + p.stderr
    assert p.stderr == ""
    assert hosts.cached(0) == []  # it has crun of the same version
    for host in (1, 2):
        [program] = hosts.cached(host)
        assert program.name == program_hash() and program.stat().st_mode & 0o7777 == 0o700
        assert program.read_bytes() == pathlib.Path(jobs.crun()).read_bytes()
        assert {part.stat().st_mode & 0o7777 for part in (program.parent, program.parent.parent)} == {0o700}


def test_a_cached_program_is_used_again_and_a_damaged_one_is_replaced(hosts):
    job = ("--nproc-per-node=1", *shell("exit 0"))
    names = ["host1", "host2"]
    assert hosts.crun(*job, hosts=names).returncode == 0
    first = [hosts.cached(host)[0] for host in (1, 2)]
    before = [program.stat() for program in first]
    with open(first[1], "r+b") as program:
        program.seek(5000)
        byte = program.read(1)
        program.seek(5000)
        program.write(bytes([byte[0] ^ 1]))
    p = hosts.crun(*job, hosts=names)
    assert p.returncode == 0, p.stderr
    kept, replaced = first[0].stat(), first[1].stat()
    assert (kept.st_ino, kept.st_mtime_ns) == (before[0].st_ino, before[0].st_mtime_ns)
    assert replaced.st_ino != before[1].st_ino
    assert hashlib.sha256(first[1].read_bytes()).hexdigest() == program_hash() and hosts.cached(2) == [first[1]]


def test_hosts_with_one_home_copy_at_the_same_time(tmp_path):
    strict.skip_if(ssh_hosts.missing())
    with SshHosts(tmp_path, 3, bare=range(3), home=tmp_path / "home") as hosts:
        for _ in range(3):
            p = hosts.crun("--nproc-per-node=1", *shell(HELLO), cwd="/")
            assert p.returncode == 0 and p.stdout.count("of 3 at host") == 3, p.stdout + p.stderr
            [program] = hosts.cached(0)
            assert hashlib.sha256(program.read_bytes()).hexdigest() == program_hash()
            program.unlink()
        assert hosts.wait_until_empty() == {} and hosts.files() == []


def test_no_copy_is_refused_by_the_name_of_a_host(hosts):
    p = hosts.crun("--no-copy", "--nproc-per-node=1", *shell("exit 0"), hosts=["host0", "host1"])
    assert p.returncode == REFUSED
    assert_named(p.stderr, "host1", "is not on PATH there", "--no-copy")
    assert "host host0" not in p.stderr  # its agent may be the one that repeats the cause
    assert hosts.cached(1) == hosts.cached(2) == []


def test_a_full_disk_is_named(hosts):
    (hosts.home(2) / ".cache").mkdir()
    hosts.enter(2, "mount", "-t", "tmpfs", "-o", "size=64k", "none", hosts.home(2) / ".cache")
    try:
        p = hosts.crun("--nproc-per-node=1", *shell("exit 0"))
        assert p.returncode == REFUSED
        assert_named(p.stderr, "host2", ".cache/crun/bin")
        left = subprocess.run(["nsenter", "--mount", "--target", str(hosts.servers[2].pid), "find", hosts.home(2) / ".cache", "-type", "f"],
                              capture_output=True, text=True, timeout=30).stdout
        assert left == ""
    finally:
        hosts.enter(2, "umount", hosts.home(2) / ".cache")


def test_login_shells_with_noise(tmp_path):
    strict.skip_if(ssh_hosts.missing())
    shells = {host: shutil.which(name) for host, name in enumerate(("tcsh", "fish", "bash"))}
    strict.skip_if(None if all(shells.values()) else "tcsh, fish or bash is not installed")
    with SshHosts(tmp_path, 3, shells=shells, bare=range(3)) as hosts:
        for host, path in enumerate((".cshrc", ".config/fish/config.fish", ".bashrc")):
            (hosts.home(host) / path).parent.mkdir(parents=True, exist_ok=True)
            (hosts.home(host) / path).write_text("echo WELCOME TO THIS CLUSTER\n")
        for _ in range(2):  # with a copy of crun, and with a cached one
            p = hosts.crun("--nproc-per-node=1", *shell(HELLO), cwd="/")
            assert p.returncode == 0, p.stdout + p.stderr
            assert sorted(p.stdout.splitlines()) == [f"rank {rank} of 3 at host{rank} in /" for rank in range(3)]
            assert "WELCOME" not in p.stderr


# ---- hosts that cannot be reached: named, without a question


def test_an_unknown_host_key_is_named_without_a_question(repaired):
    repaired.forget_host_key(2)
    code, text = repaired.run_on_terminal(repaired.command("--nproc-per-node=1", *shell("exit 0")))
    assert code == REFUSED
    assert_named(text, "host2", "host key is unknown", "`ssh host2`")
    assert "yes/no" not in text


def test_a_changed_host_key_is_named(repaired):
    repaired.change_host_key(2)
    repaired.restart_server(2)
    code, text = repaired.run_on_terminal(repaired.command("--nproc-per-node=1", *shell("exit 0")))
    assert code == REFUSED
    assert_named(text, "host2", "host key has changed", "ssh-keygen -R")


def test_a_wanted_password_is_named_without_a_question(repaired):
    repaired.passwords.add(2)
    repaired.configure(2)
    repaired.restart_server(2)
    code, text = repaired.run_on_terminal(repaired.command("--nproc-per-node=1", *shell("exit 0")))
    assert code == REFUSED
    assert_named(text, "host2", "password", "ssh-copy-id")
    assert "password:" not in text


def test_a_host_without_sshd_is_named(repaired):
    repaired.stop_server(2)
    repaired.servers[2] = subprocess.Popen(["sleep", "60"])
    p = repaired.crun("--nproc-per-node=1", *shell("exit 0"))
    assert p.returncode == REFUSED
    assert_named(p.stderr, "host2", "no ssh server listens")


def test_enough_hosts_start_without_the_one_that_cannot_be_reached(repaired):
    repaired.stop_server(2)
    repaired.servers[2] = subprocess.Popen(["sleep", "60"])
    p = repaired.crun("--nnodes=2:3", "--nproc-per-node=1", "--rdzv-conf=last_call_timeout=1", *shell(HELLO), cwd="/")
    assert p.returncode == 0, p.stdout + p.stderr
    assert sorted(p.stdout.splitlines()) == ["rank 0 of 2 at host0 in /", "rank 1 of 2 at host1 in /"]
    assert_named(p.stderr, "host2", "no ssh server listens")


# ---- place and environment


def test_a_directory_that_one_host_lacks_is_named(hosts):
    work = hosts.folder / "place/work"
    work.mkdir(parents=True, exist_ok=True)
    hosts.enter(1, "mount", "-t", "tmpfs", "none", work.parent)
    try:
        p = hosts.crun("--nproc-per-node=1", *shell("exit 0"), cwd=work)
        assert p.returncode == REFUSED
        assert_named(p.stderr, "host1", str(work), "--chdir")
        assert p.stderr.count("crun: host ") == 1
        p = hosts.crun("--chdir=/usr", "--nproc-per-node=1", *shell(HELLO), cwd=work)
        assert p.returncode == 0 and p.stdout.count(" in /usr\n") == 3, p.stdout + p.stderr
    finally:
        hosts.enter(1, "umount", work.parent)


def test_named_variables_travel_and_others_stay(hosts):
    show = 'echo "$RANK [$HF_HOME] [$OMP_NUM_THREADS] [$MINE] [$GIVEN] [$NOT_MINE]"'
    given = {"HF_HOME": "/models", "OMP_NUM_THREADS": "3", "MINE": "a b'c", "NOT_MINE": "secret"}
    p = hosts.crun("--export=MINE,GIVEN=1 2", "--nproc-per-node=1", *shell(show), environment=given)
    assert p.returncode == 0, p.stderr
    assert sorted(p.stdout.splitlines()) == [f"{rank} [/models] [3] [a b'c] [1 2] []" for rank in range(3)]


# ---- output, input and the end


def test_output_is_gathered_for_each_host_and_stdin_reaches_rank_0(hosts, tmp_path):
    script = 'echo "out $RANK"; echo "err $RANK" >&2; [ $RANK != 0 ] || cat'
    with open(tmp_path / "input", "w+") as given:
        given.write("line of the front\n" * 1000)
        given.seek(0)
        p = hosts.crun("--nproc-per-node=2", "-t", "3", f"--log-dir={tmp_path}/logs", *shell(script), stdin=given)
    assert p.returncode == 0, p.stdout + p.stderr
    assert p.stdout.count("[default 0@host0]: line of the front\n") == 1000
    for rank in range(6):
        [out] = (tmp_path / "logs" / f"host{rank // 2}").rglob(f"{rank % 2}/stdout.log")
        assert out.read_text().startswith(f"out {rank}\n")
        [err] = (tmp_path / "logs" / f"host{rank // 2}").rglob(f"{rank % 2}/stderr.log")
        assert err.read_text() == f"err {rank}\n"


def test_the_first_cause_is_reported_once_and_the_job_ends(hosts):
    p = hosts.crun("--nproc-per-node=2", *shell('[ $RANK != 3 ] || { sleep 0.3; exit 7; }; exec sleep 600'))
    assert p.returncode == 1
    assert len(re.findall(r"rank 3\b.*exit ?code:? 7|exited with code 7", p.stderr)) >= 1, p.stderr
    assert p.stderr.count("ROOT CAUSE") + p.stderr.count("first failure") <= 1, p.stderr


def test_control_c_stops_the_job_and_a_second_one_kills_it(hosts, tmp_path):
    for n_signals, script, shutdown in ((1, HOLD, 30), (2, "trap '' INT TERM; " + HOLD.replace("exec sleep 600", "while :; do sleep 1; done"), 60)):
        with open(tmp_path / "out", "wb") as out:
            front = hosts.start(hosts.command("--nproc-per-node=1", f"--shutdown-timeout={shutdown}", *shell(script)), stdout=out, stderr=out)
        text = (tmp_path / "out").read_text
        assert jobs.wait_until(lambda: text().count("is up") == 3, 30), text()
        for _ in range(n_signals):
            os.kill(front.pid, signal.SIGINT)
            time.sleep(1.2)  # quicker ones are the same request
        assert front.wait(30) == 1, text()
        assert "SIGINT" in text()
        assert hosts.wait_until_empty() == {}


def test_nothing_outlives_a_kill(hosts, tmp_path):
    """Two jobs at once: kill -9 of the front of one, and of one ssh of the other."""
    fronts, texts = [], []
    for name in ("first", "second"):
        with open(tmp_path / name, "wb") as out:
            fronts.append(hosts.start(hosts.command(f"--rdzv-id={name}", "--nproc-per-node=2", *shell(HOLD)), stdout=out, stderr=out))
        texts.append((tmp_path / name).read_text)
    for text in texts:
        assert jobs.wait_until(lambda text=text: text().count("is up") == 6, 30), text()
    [ssh] = [pid for pid in jobs.children(fronts[1].pid) if "host1" in ssh_hosts.command_line(pid).split()]
    fronts[0].kill()
    jobs.kill(ssh)
    assert fronts[1].wait(60) == 1, texts[1]()
    assert_named(texts[1](), "host1", "was lost")
    fronts[0].wait()
    assert hosts.wait_until_empty(30) == {}


def test_the_front_works_behind_a_router_that_translates(tmp_path):
    strict.skip_if(ssh_hosts.missing())
    with SshHosts(tmp_path, 2, behind_nat=True) as hosts:
        dial = subprocess.run(["ip", "netns", "exec", hosts.fabric.space(0), "ping", "-c1", "-W1", "192.168.79.2"], capture_output=True)
        assert dial.returncode != 0  # no way from a host to the front
        p = hosts.crun("--nproc-per-node=1", *shell(HELLO + '; echo "at $CRUN_MASTER_HOST"'), cwd="/")
        assert p.returncode == 0 and p.stdout.count("of 2 at host") == 2, p.stdout + p.stderr
        assert p.stdout.count("at 10.79.0.1\n") == 2 or p.stdout.count("at host0\n") == 2, p.stdout


# ---- commands in place of ssh


# ---- the addresses of hosts

ADDRESS = 'echo "$RANK $MASTER_ADDR $GLOO_SOCKET_IFNAME"'


def test_localhost_beside_another_host(hosts):
    """ssh reached it at 127.0.0.1, and no default route names another address."""
    with open(hosts.folder / "known_hosts", "a") as known:
        known.write(f"localhost {hosts.host_key[0]}")
    command = hosts.command("--worker-store=shared", *shell(ADDRESS), hosts=["localhost", "host1"])
    p = subprocess.run([*hosts.place_prefix(0), *command], capture_output=True, text=True, timeout=60, env=hosts.environment(),
                       cwd=hosts.folder, stdin=subprocess.DEVNULL)
    address = hosts.fabric.address(0)
    assert p.returncode == 0 and sorted(p.stdout.splitlines()) == [f"{rank} {address} eth0" for rank in range(2)], p.stdout + p.stderr


@pytest.mark.parametrize("network, address", [("10.99.0.0/24", "10.99.0.7"), ("fd79::/64", "fd79::1")])
def test_a_network_chooses_the_address_of_each_host(hosts, network, address):
    for host in range(2):
        fabric.sh(f"ip -n {hosts.fabric.space(host)} addr replace 10.99.0.{7 + host}/24 dev eth0")
    p = hosts.crun("--worker-store=shared", f"--local-addr={network}", *shell(ADDRESS), hosts=["host0", "host1"], cwd=hosts.folder)
    assert p.returncode == 0 and sorted(p.stdout.splitlines()) == [f"{rank} {address} eth0" for rank in range(2)], p.stdout + p.stderr


def test_a_given_interface_stays(hosts):
    p = hosts.crun("--export=GLOO_SOCKET_IFNAME=lo", *shell(ADDRESS), hosts=["host0", "host1"], cwd=hosts.folder)
    assert p.returncode == 0 and sorted(p.stdout.splitlines()) == [f"{rank} 127.0.0.1 lo" for rank in range(2)], p.stdout + p.stderr


def test_a_network_that_hosts_lack_is_named(hosts):
    p = hosts.crun("--local-addr=198.51.100.0/24", *shell("true"), hosts=["host0", "host1"], cwd=hosts.folder)
    assert p.returncode == 1 and p.stdout == ""
    assert_named(p.stderr, "--local-addr=198.51.100.0/24", "this node has no address in that network")


def test_another_command_starts_the_hosts(hosts):
    p = hosts.crun("--launch=ssh -T {host}", "--nproc-per-node=1", *shell(HELLO), cwd="/")
    assert p.returncode == 0 and p.stdout.count("of 3 at host") == 3, p.stdout + p.stderr


def test_a_command_without_a_standard_input_is_refused(hosts):
    for host in ("host0", "host1"):  # with crun and without
        p = hosts.crun("--launch=ssh -n {host}", "--nproc-per-node=1", *shell("exit 0"), hosts=[host])
        assert p.returncode == REFUSED, p.stdout + p.stderr
        assert_named(p.stderr, host, "standard input")


# ---- strangers


def words_in(processes):
    """Environments and arguments of processes."""
    for pid in processes:
        for what in ("cmdline", "environ"):
            try:
                yield what, pid, pathlib.Path(f"/proc/{pid}/{what}").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                pass


@pytest.fixture
def held(hosts, tmp_path):
    """The hosts, with a job on two of them."""
    with open(tmp_path / "out", "wb") as out:
        front = hosts.start(hosts.command("--nproc-per-node=1", *shell(HOLD), hosts=["host0", "host1"]), stdout=out, stderr=out)
    text = (tmp_path / "out").read_text
    assert jobs.wait_until(lambda: text().count("is up") == 2, 30), text()
    yield hosts
    front.send_signal(signal.SIGTERM)
    assert front.wait(30) == 1, text()


def test_the_made_secret_shows_nowhere(held):
    """The workers have a descriptor of the key; no argument and no variable of any process has the key."""
    words = list(words_in(held.processes()))
    found = [(pid, re.search(rb"CRUN_KEY_FD=(\d+)", content)) for what, pid, content in words if what == "environ"]
    keys = {pathlib.Path(f"/proc/{pid}/fd/{at[1].decode()}").read_bytes() for pid, at in found if at}
    assert len(keys) == 1
    forms = [form for _, form in secret_search.forms(keys.pop())]
    for what, pid, content in words:
        assert not any(form in content for form in forms), (what, held.processes().get(pid))
        assert b"CRUN_SECRET=" not in content


def test_a_given_secret_shows_nowhere(hosts, tmp_path):
    secret = b"a secret that only the file of the front has"
    write_secret(tmp_path / "secret", secret)
    with open(tmp_path / "out", "wb") as out:
        front = hosts.start(hosts.command(f"--secret-file={tmp_path}/secret", "--worker-store=shared", "--rdzv-id=given", "--nproc-per-node=1", *shell(HOLD)), stdout=out, stderr=out)
    text = (tmp_path / "out").read_text
    assert jobs.wait_until(lambda: text().count("is up") == 3, 30), text()
    forms = [form for _, form in secret_search.forms(secret)]
    files = [("file", path, path.read_bytes()) for path in [*hosts.folder.rglob("*"), *tmp_path.rglob("*")]
             if path.is_file() and path.name != "secret"]
    for what, where, content in [*words_in(hosts.processes()), *files]:
        assert not any(form in content for form in forms), (what, where)
    assert any(secret in part for part in [b"".join(secret_search.memory_of(front.pid))])  # the search is able to find it
    front.send_signal(signal.SIGTERM)
    assert front.wait(30) == 1, text()


def tries_at(hosts, ports):
    """What is served to another user of host0 on its loopback, and to root of a host outside the job on its address: {kind: number}."""
    kinds = {name: (*kind[:2], True, 0.5) for name, kind in hostile_tries.kinds().items() if name in TRIES}
    arguments = {"tries": 5 * len(ports), "kinds": kinds}
    targets = [[(address, port) for port in ports] for address in ("127.0.0.1", hosts.fabric.address(0))]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        near = pool.submit(hostile_tries.attack_from, hosts.fabric, 0, 0, {**arguments, "uid": hostile_tries.OTHER, "targets": targets[0]})
        far = pool.submit(hostile_tries.attack_from, hosts.fabric, 2, 0, {**arguments, "uid": 0, "targets": targets[1]})
        return near.result(), far.result()


def test_strangers_get_nothing(held):
    """At each port of host0: the way to the rendezvous on its loopback, and the store of the workers."""
    listening = [address.rpartition(":") for address in hostile_tries.listeners(held.fabric, 0)]
    ports = sorted({int(port) for _, _, port in listening if port != "22"})
    assert ports
    near, far = tries_at(held, ports)
    assert set(near) == set(far) == set(TRIES) and not any(near.values()) and not any(far.values()), (near, far)
