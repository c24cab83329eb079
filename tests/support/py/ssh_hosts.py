"""Hosts with a real sshd, each a network namespace with a host name, an /etc/hosts and a home of its own.

The last namespace of the fabric is the place of the front. Nothing outside the test's folder is read or written: host keys,
the user's key, known hosts, homes and both configurations lie in there, and `ssh` on the PATH of the front is a wrapper
with the test's configuration. Needs root, iproute2 and openssh-server; everything is gone when the `with` ends.
"""

import contextlib
import fcntl
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time

import fabric as fabrics
import jobs

SSHD = "/usr/sbin/sshd"
PLAIN_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

IN_PLACE = """\
hostname "$1" && mount -t tmpfs -o mode=755 none /run && mkdir -m 755 /run/sshd || exit 1
for file in "$2"/*; do mount --bind "$file" /etc/"${file##*/}" || exit 1; done
[ -z "$3" ] || mount -t tmpfs none "$3" || exit 1
shift 3 && exec "$@"
"""

SSHD_CONFIG = """\
Port 22
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
UsePAM no
UseDNS no
StrictModes no
PrintMotd no
PrintLastLog no
PermitRootLogin yes
PasswordAuthentication {password}
KbdInteractiveAuthentication no
MaxStartups 500
LogLevel VERBOSE
SetEnv {variables}
"""

SSH_CONFIG = """\
Host *
    User root
    IdentityFile {folder}/user_key
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile none
    UpdateHostKeys no
"""


def missing():
    """The reason why hosts with sshd cannot exist here, or None."""
    if not (os.access(SSHD, os.X_OK) and shutil.which("ssh") and shutil.which("ssh-keygen")):
        return "openssh-server or openssh-client is not installed"
    return fabrics.missing()


def make_key(path):
    """An ed25519 key at path, in place of an older one; returns the public half."""
    for old in (path, path.with_suffix(".pub")):
        old.unlink(missing_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", path], check=True, timeout=30)
    return path.with_suffix(".pub").read_text()


def pids_of(space):
    """Processes of a network namespace."""
    got = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, timeout=30)
    return {int(pid) for pid in got.stdout.split()}


def command_line(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_living(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class SshHosts:
    def __init__(self, folder, n_hosts, shells=(), bare=(), paths=(), variables=(), home=None, network=79, behind_nat=False):
        """shells, paths: the login shell and the PATH of single hosts, {host: text}. bare: hosts without crun, also
        at the path of the front's crun. variables: further ones of every login. home: a home for all hosts.
        behind_nat: no host can open a connection to the front."""
        self.folder, self.n_hosts = pathlib.Path(folder), n_hosts
        self.shells, self.bare, self.paths, self.passwords = dict(shells), set(bare), dict(paths), set()
        self.variables = dict(variables)
        self.shared_home, self.behind_nat = home, behind_nat
        self.front = n_hosts
        self.fabric = fabrics.Fabric(n_hosts + 1, network)
        self.front_space = self.fabric.space(self.front)
        self.servers = {}

    def names(self):
        return [self.fabric.hostname(host) for host in range(self.n_hosts)]

    def place(self, host):
        return self.folder / self.fabric.hostname(host)

    def home(self, host):
        return pathlib.Path(self.shared_home or self.place(host) / "home")

    # ---- the making of hosts

    def __enter__(self):
        with contextlib.ExitStack() as undo:
            undo.callback(self.fabric.__exit__)
            undo.callback(self.clear)
            self.fabric.__enter__()
            self.authorized = make_key(self.folder / "user_key")
            (self.folder / "known_hosts").touch()
            for host in range(self.n_hosts):
                self.make_host(host)
            self.make_front()
            for host in range(self.n_hosts):
                self.start_server(host)
            self.wait_for_servers()
            self.undo = undo.pop_all()
        return self

    def __exit__(self, *_):
        self.undo.close()

    def make_host(self, host):
        place, etc = self.place(host), self.place(host) / "etc"
        etc.mkdir(parents=True)
        self.home(host).mkdir(exist_ok=True, mode=0o700)
        (place / "authorized_keys").write_text(self.authorized)
        shell = self.shells.get(host, "/bin/sh")
        users = [line for line in pathlib.Path("/etc/passwd").read_text().splitlines() if not line.startswith("root:")]
        (etc / "passwd").write_text("\n".join([f"root:x:0:0:root:{self.home(host)}:{shell}", *users, ""]))
        (etc / "hosts").write_text(self.hosts_text())
        self.configure(host)
        self.change_host_key(host)
        self.learn_host_key(host)

    def hosts_text(self):
        named = [f"{self.fabric.address(host)} {self.fabric.hostname(host)}\n" for host in range(self.n_hosts + 1)]
        return "127.0.0.1 localhost\n::1 localhost\n::ffff:127.0.0.1 localhost\n" + "".join(named)

    def configure(self, host):
        """A host of .passwords wants a password. Takes effect at the next start of the server."""
        variables = {"PATH": self.paths.get(host, PLAIN_PATH), **self.variables}
        (self.place(host) / "sshd_config").write_text(SSHD_CONFIG.format(
            folder=self.place(host), password="yes" if host in self.passwords else "no",
            variables=" ".join(f"{name}={value}" for name, value in variables.items())))
        if host in self.passwords:
            (self.place(host) / "authorized_keys").write_text("")

    def change_host_key(self, host):
        """Takes effect at the next start of the server."""
        self.host_key = getattr(self, "host_key", {})
        self.host_key[host] = make_key(self.place(host) / "host_key")

    def learn_host_key(self, host):
        self.forget_host_key(host)
        with open(self.folder / "known_hosts", "a") as known:
            known.write(f"{self.fabric.hostname(host)},{self.fabric.address(host)} {self.host_key[host]}")

    def forget_host_key(self, host):
        path = self.folder / "known_hosts"
        kept = [line for line in path.read_text().splitlines(True) if not line.startswith(f"{self.fabric.hostname(host)},")]
        path.write_text("".join(kept))

    def make_front(self):
        etc, bin_folder, home = self.place(self.front) / "etc", self.folder / "bin", self.place(self.front) / "home"
        etc.mkdir(parents=True)
        home.mkdir(mode=0o700)
        bin_folder.mkdir()
        (etc / "hosts").write_text(self.hosts_text())
        (self.folder / "ssh_config").write_text(SSH_CONFIG.format(folder=self.folder))
        (bin_folder / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.folder}/ssh_config "$@"\n')
        (bin_folder / "ssh").chmod(0o755)
        if self.behind_nat:
            self.make_nat()

    def make_nat(self):
        """The front's place becomes a router with address translation, and the front moves behind it."""
        router, inner = self.front_space, f"{self.fabric.name}-nat"
        rules = ("add table ip nat; add chain ip nat post { type nat hook postrouting priority 100; };"
                 "add rule ip nat post oifname eth0 masquerade;"
                 "add chain ip nat pass { type filter hook forward priority 0; policy drop; };"
                 "add rule ip nat pass iifname inner accept; add rule ip nat pass ct state established,related accept")
        fabrics.sh(f"ip netns add {inner} && ip -n {inner} link set lo up && "
                   f"ip -n {router} link add inner type veth peer name eth0 netns {inner} && "
                   f"ip -n {router} addr add 192.168.79.1/24 dev inner && ip -n {router} link set inner up && "
                   f"ip -n {inner} addr add 192.168.79.2/24 dev eth0 && ip -n {inner} link set eth0 up && "
                   f"ip -n {inner} route add default via 192.168.79.1 && "
                   f"ip netns exec {router} sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward' && "
                   f"ip netns exec {router} nft '{rules}'")
        self.front_space = inner

    def place_prefix(self, host):
        """In front of a command, to run it with the name, the files in /etc and the empty /run of a host."""
        space = self.front_space if host == self.front else self.fabric.space(host)
        return ["ip", "netns", "exec", space, "unshare", "--uts", "--mount", "sh", "-c", IN_PLACE, "sh", self.fabric.hostname(host),
                str(self.place(host) / "etc"), str(pathlib.Path(jobs.crun()).parent) if host in self.bare else ""]

    def spaces(self):
        return [*map(self.fabric.space, range(self.n_hosts)), self.front_space]

    # ---- servers

    def start_server(self, host):
        place = self.place(host)
        log = place / "sshd.log"
        log.unlink(missing_ok=True)
        self.servers[host] = subprocess.Popen(
            [*self.place_prefix(host), SSHD, "-D", "-e", "-f", place / "sshd_config"], cwd="/",
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=open(log, "wb"), start_new_session=True)

    def wait_for_servers(self, hosts=None, timeout=60):
        for host in range(self.n_hosts) if hosts is None else hosts:
            log = self.place(host) / "sshd.log"
            if not jobs.wait_until(lambda log=log: "Server listening on 0.0.0.0" in log.read_text() or self.servers[host].poll() is not None,
                                   timeout) or self.servers[host].poll() is not None:
                raise AssertionError(f"sshd of host {host}: {log.read_text()}")

    def stop_server(self, host):
        """Only the listener: sessions stay."""
        server = self.servers.pop(host)
        server.kill()
        server.wait()

    def restart_server(self, host):
        self.stop_server(host)
        self.start_server(host)
        self.wait_for_servers([host])

    def clear(self):
        """Kills by pid the processes left in the namespaces."""
        deadline = time.monotonic() + 10
        while (left := {pid for space in self.spaces() for pid in pids_of(space)}) and time.monotonic() < deadline:
            for pid in left:
                jobs.kill(pid, signal.SIGKILL)
            for server in self.servers.values():
                server.poll()
            time.sleep(0.01)
        for server in self.servers.values():
            server.wait(10)
        self.servers.clear()
        if self.behind_nat:
            fabrics.sh(f"ip netns del {self.fabric.name}-nat", check=False)

    # ---- the front

    def environment(self, **more):
        return {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "HOME": str(self.place(self.front) / "home"),
                "OMP_NUM_THREADS": "1", **more}

    def prefix(self):
        """In front of a command, to run it at the front."""
        return self.place_prefix(self.front)

    def run(self, command, timeout=60, environment=None, **more):
        """Runs a command at the front to its end. A command above the time limit is killed."""
        more = {"stdin": subprocess.DEVNULL, **more}
        return subprocess.run([*self.prefix(), *map(str, command)], capture_output=True, text=True, errors="replace", timeout=timeout,
                              env=self.environment(**(environment or {})), **more)

    def start(self, command, environment=None, **more):
        more = {"stdin": subprocess.DEVNULL, **more}
        return subprocess.Popen([*self.prefix(), *map(str, command)], env=self.environment(**(environment or {})),
                                start_new_session=True, **more)

    def crun(self, *args, hosts=None, **more):
        """Runs crun at the front on these hosts (all) to its end."""
        return self.run(self.command(*args, hosts=hosts), **more)

    def command(self, *args, hosts=None):
        return [jobs.crun(), "--hosts=" + ",".join(hosts or self.names()), *map(str, args)]

    def run_on_terminal(self, command, timeout=30):
        """(exit code, text) of a command at the front with a terminal of its own, where nothing is typed."""
        master, slave = os.openpty()
        process = subprocess.Popen([*self.prefix(), *map(str, command)], env=self.environment(), stdin=slave, stdout=slave, stderr=slave,
                                   start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(slave)
        text, deadline = b"", time.monotonic() + timeout
        with contextlib.suppress(OSError):  # EIO: the last process of the terminal has ended
            while time.monotonic() < deadline:
                if select.select([master], [], [], 0.1)[0]:
                    text += os.read(master, 65536)
        os.close(master)
        try:
            return process.wait(max(0.1, deadline - time.monotonic())), text.decode(errors="replace").replace("\r", "")
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"still running after {timeout} s: {text}") from None

    def enter(self, host, *command):
        """Runs a command in the mount namespace of a host."""
        subprocess.run(["nsenter", "--mount", "--target", str(self.servers[host].pid), *map(str, command)], check=True, timeout=30,
                       capture_output=True)

    # ---- processes and files

    def processes(self, *hosts):
        """{pid: command line} of the living processes at the given hosts (default: everywhere), but for the servers."""
        servers = {server.pid for server in self.servers.values()}
        spaces = [self.front_space if host == self.front else self.fabric.space(host) for host in hosts or range(self.n_hosts + 1)]
        return {pid: command_line(pid) for space in spaces for pid in pids_of(space) - servers if is_living(pid)}

    def wait_until_empty(self, timeout=10):
        """Processes left after the time: {} is the aim."""
        jobs.wait_until(lambda: not self.processes(), timeout, 0.02)
        return self.processes()

    def files(self, *hosts):
        """Files below the homes, but for the cache of programs and the history of jobs."""
        homes = {self.home(host) for host in hosts or range(self.n_hosts)}
        found = {str(path.relative_to(home)) for home in homes for path in home.rglob("*") if path.is_file()}
        return sorted(path for path in found if not path.startswith((".cache/crun/bin/", ".local/state/crun/")))

    def cached(self, host):
        """Programs in the cache of a host."""
        return sorted(path for path in (self.home(host) / ".cache/crun/bin").glob("*") if path.is_file())

    def log(self, host):
        return (self.place(host) / "sshd.log").read_text(errors="replace")


def try_logins(hosts):
    begin = time.monotonic()
    started = [hosts.start(["ssh", "-oBatchMode=yes", name, "hostname; exit 3"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
               for name in hosts.names()]
    for name, process in zip(hosts.names(), started):
        text = process.communicate(timeout=60)[0]
        assert process.returncode == 3 and text.split()[0] == name, (process.returncode, text)
    print(f"a login to each in {time.monotonic() - begin:.2f} s")


def main():
    """By hand: ssh_hosts.py N [BARE [COMMAND...]] makes N hosts (host0, host1, ...), BARE of them without crun, and runs a command at
    their front (a shell on the terminal: sh -i), or logs in to each."""
    n_hosts, n_bare, command = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0, sys.argv[3:]
    if missing():
        sys.exit(missing())
    with tempfile.TemporaryDirectory(prefix="crun-ssh-") as folder, SshHosts(folder, n_hosts, bare=range(n_hosts - n_bare, n_hosts)) as hosts:
        begin, code = time.monotonic(), 0
        if command:
            code = subprocess.call([*hosts.prefix(), *command], env=hosts.environment())
            print(f"exit code {code} after {time.monotonic() - begin:.2f} s", file=sys.stderr)
        else:
            try_logins(hosts)
        left = hosts.wait_until_empty()
        print(f"left: {left}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
