"""Faults at random moments of a job of crun --hosts over a real sshd, on three hosts in network namespaces.

Each try starts a job for about two seconds, half of them on all hosts with six ranks, the others with one of the hosts as a
spare or a number of nodes that may shrink. It does one of:

  front, ssh, far, agent, sshd   kill -9 of the front, of one ssh, or on one host of the remote end, the agent, sshd's child
  cable                          one host loses its network
  ctrl-c, ctrl-c-twice           SIGINT to the front, once, or again 0 to 300 ms later
  disk, key, directory, version  from the start on, one host has a full disk and no crun, another host key, no working
                                 directory, or a crun of another version (passed over for a copy)

The moment of a kill is drawn from the time of an undisturbed job, a quarter of the moments from the first 300 ms; half of the
kills wait for their process. Afterwards

  - the exit code is right: 0 if the job had ended or can lose the host, 1 if not, the signal of a killed front,
  - 0 comes with the output of all ranks, and no host but the lost one is named as lost,
  - the first sentence on the end names the host, or the signal,
  - the front has not crashed and does not hang,
  - no process is left at any host, and no file but whole copies of crun and the history.

Usage: hosts_faults.py [--tries N] [--at-once N] [--seed N] [--show] [FAULT...]     needs root and openssh-server
"""

import argparse
import collections
import functools
import hashlib
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

import jobs
import ssh_hosts
import turns

N_HOSTS = 3
END_S = 60
LOGIN_END_S = 150  # of a cable that is pulled while ssh proves its key: two minutes for the start
WORKER = 'echo "rank $RANK of $WORLD_SIZE up"; sleep 1; echo "rank $RANK of $WORLD_SIZE done"'
NODES = ("3", "3", "3", "2", "1:2", "1:3")
PROGRAMS = {"far": "--front-channel", "agent": "--rdzv-id"}  # words of the command lines


class Try:
    """One job, its fault and the outcome."""

    def __init__(self, hosts, draw, whole, fault):
        self.hosts, self.draw, self.fault = hosts, draw, fault
        self.host = draw.randrange(N_HOSTS)
        self.moment = draw.uniform(0, whole * 1.05) if draw.random() < 0.75 else draw.uniform(0, 0.3)
        self.nodes = draw.choice(NODES)
        self.out = hosts.folder / "out"
        self.did = ""  # command line of the killed process
        self.pause = draw.uniform(0, 0.3)
        self.waits = draw.random() < 0.5  # for the process to be killed

    def text(self):
        return self.out.read_text(errors="replace")

    def start(self):
        with open(self.out, "wb") as out:
            nodes = [] if self.nodes == "3" else [f"--nnodes={self.nodes}", "--max-restarts=3"]
            command = self.hosts.command("--nproc-per-node=2", "--shutdown-timeout=3", *nodes, "--no-python", "sh", "-c", WORKER)
            return self.hosts.start(command, stdout=out, stderr=out, cwd=self.hosts.folder / "place/work")

    def kill(self, number, host, is_meant):
        """The first such process of a host."""
        def find():
            return [pid for pid, line in sorted(self.hosts.processes(host).items()) if is_meant(line)]
        found = jobs.wait_until(find, 2 if self.waits else 0, 0.01) or []
        if found:
            self.did = ssh_hosts.command_line(found[0])[:60] or "gone"
            jobs.kill(found[0], number)

    def run(self):
        hosts, name = self.hosts, self.hosts.fabric.hostname(self.host)
        begin = time.monotonic()
        front = self.start()
        if self.fault in AT_A_MOMENT:
            time.sleep(max(0, begin + self.moment - time.monotonic()))
            AT_A_MOMENT[self.fault](self, front, name)
        try:
            code = front.wait(LOGIN_END_S if self.fault == "cable" else END_S)
        except subprocess.TimeoutExpired:
            code = "hangs"
        took = time.monotonic() - begin
        wrong = self.judge(code, name)
        left = self.left()
        wrong += [f"left: {left}"] * bool(left)
        end_front(front)
        return code, wrong, took

    def left(self):
        """Processes of crun, then all: sshd itself keeps a session behind a pulled cable."""
        def of_crun():
            return {pid: line for pid, line in self.hosts.processes().items() if not line.startswith("sshd")}
        jobs.wait_until(lambda: not of_crun(), 40, 0.05)
        found = of_crun()
        self.hosts.fabric.link(self.host, "up")
        if not found:
            found = self.hosts.wait_until_empty(20 if self.fault != "cable" else 0)
            if self.fault == "cable":
                for pid in found:
                    jobs.kill(pid)
                found = {}
        whole = hashlib.sha256(pathlib.Path(jobs.crun()).read_bytes()).hexdigest()
        files = [path for path in self.hosts.files() if path != ".cache/crun/full"]
        files += [str(path) for host in range(N_HOSTS) for path in self.hosts.cached(host)
                  if path.name != whole or hashlib.sha256(path.read_bytes()).hexdigest() != whole]
        files += [str(path) for path in (self.hosts.folder / "tmp").iterdir()]
        return [*found.values(), *files]

    # ---- the expected outcome

    def judge(self, code, name):
        text = self.text()
        done = {tuple(map(int, pair)) for pair in re.findall(r"rank (\d+) of (\d+) done", text)}
        is_done = any(done.issuperset((rank, n) for rank in range(n)) for _, n in done)
        codes, words = EXPECTED[self.fault]
        if self.nodes != "3" and "{host}" in words:
            codes = (0,)
        wrong = []
        if code not in codes and not (code == 0 and is_done):
            wrong.append(f"exit code {code}")
        if code == 0 and not is_done:
            wrong.append("exit code 0 without the output of all ranks")
        if code == 1 and not re.search(words.format(host=name), first_cause(text)):
            wrong.append(f"the first cause does not name {words.format(host=name)}")
        if code == 0:
            wrong += self.judge_lost(text, name)
        if re.search(r"Sanitizer|Assertion|core dumped", text):
            wrong.append("a crash")
        return wrong

    def judge_lost(self, text, name):
        """The job has ended well, with or without the host."""
        lost = set(re.findall(r"^crun: host (\S+) (?:was lost|could not be started)", text, re.M))
        wrong = [f"lost as well: {other}" for other in sorted(lost - {name})]
        ups = collections.Counter(re.findall(r"rank (\d+) of \d+ up", text))
        if max(ups.values()) > 1 and not lost:
            wrong.append("a restart without a lost host")
        return wrong


def first_cause(text):
    """The first sentence of crun."""
    return next((line for line in text.splitlines() if line.startswith("crun: ")), "")


def end_front(front):
    if front.poll() is None:
        for pid in [*jobs.descendants(front.pid), front.pid]:
            jobs.kill(pid)
        front.wait()


def kill_front(t, front, name):
    t.did = "front" if front.poll() is None else ""
    front.kill()


def kill_ssh(t, front, name):
    t.kill(signal.SIGKILL, t.hosts.front, lambda line: line.startswith("/usr/bin/ssh ") and f" {name} " in line)


def kill_far(t, front, name):
    t.kill(signal.SIGKILL, t.host, lambda line: PROGRAMS["far"] in line.split())


def kill_agent(t, front, name):
    t.kill(signal.SIGKILL, t.host, lambda line: PROGRAMS["agent"] in line and "crun" in line.split()[0])


def kill_sshd(t, front, name):
    t.kill(signal.SIGKILL, t.host, lambda line: line.startswith("sshd: root"))


def cut_cable(t, front, name):
    t.did = "cable"
    t.hosts.fabric.link(t.host, "down")


def interrupt(t, front, name):
    t.did = "front" if front.poll() is None else ""
    jobs.kill(front.pid, signal.SIGINT)


def interrupt_twice(t, front, name):
    interrupt(t, front, name)
    time.sleep(t.pause)
    if front.poll() is None:
        jobs.kill(front.pid, signal.SIGINT)


AT_A_MOMENT = {"front": kill_front, "ssh": kill_ssh, "far": kill_far, "agent": kill_agent, "sshd": kill_sshd, "cable": cut_cable,
               "ctrl-c": interrupt, "ctrl-c-twice": interrupt_twice}

# Exit codes of a job ended by the fault, and the words of its first cause.
EXPECTED = {
    "front": ((-signal.SIGKILL,), ""), "ssh": ((1,), "{host}"), "far": ((1,), "{host}"), "agent": ((1,), "{host}"), "sshd": ((1,), "{host}"),
    "cable": ((1,), "{host}"), "ctrl-c": ((1, -signal.SIGINT), "SIGINT"), "ctrl-c-twice": ((1, -signal.SIGINT, 130), "SIGINT"),
    "disk": ((1,), "{host}"), "key": ((1,), "{host}.*host key"), "directory": ((1,), "{host}.*/work"), "version": ((0,), ""),
}
FAULTS = tuple(EXPECTED)


# ---- hosts with a fault from the start on


def make_hosts(folder, bare):
    (folder / "place/work").mkdir(parents=True)
    (folder / "tmp").mkdir()
    return ssh_hosts.SshHosts(folder, N_HOSTS, bare=bare, variables={"TMPDIR": str(folder / "tmp")})


def prepare(hosts, fault, host):
    """Done before the job, with hosts that are made for this try."""
    if fault == "disk":
        (hosts.home(host) / ".cache").mkdir()
        hosts.enter(host, "mount", "-t", "tmpfs", "-o", "size=64k", "none", hosts.home(host) / ".cache")
    elif fault == "key":
        hosts.change_host_key(host)
        hosts.restart_server(host)
    elif fault == "directory":
        hosts.enter(host, "mount", "-t", "tmpfs", "none", hosts.folder / "place")
    elif fault == "version":
        other = hosts.place(host) / "bin"
        other.mkdir()
        (other / "crun").write_text("#!/bin/sh\necho crun 0.0.1\nexit 0\n")
        (other / "crun").chmod(0o755)
        hosts.paths[host] = f"{other}:{ssh_hosts.PLAIN_PATH}"
        hosts.configure(host)
        hosts.restart_server(host)


def run_try(hosts, draw, whole, fault):
    t = Try(hosts, draw, whole, fault)
    prepare(hosts, fault, t.host)
    code, wrong, took = t.run()
    return {"fault": fault, "host": t.host, "nodes": t.nodes, "moment": t.moment, "met": t.did, "code": code, "wrong": wrong, "took": took, "text": t.text()}


def duration(folder):
    """How long an undisturbed job takes, at least: the first copies crun."""
    took = []
    with tempfile.TemporaryDirectory(dir=folder) as place:
        with make_hosts(pathlib.Path(place), (1, 2)) as hosts:
            for _ in range(2):
                begin = time.monotonic()
                t = Try(hosts, random.Random(0), 1, "version")
                t.nodes = "3"
                front = t.start()
                code = front.wait(END_S)
                assert code == 0, t.text()
                took.append(time.monotonic() - begin)
    return min(took)


def play(tries, first, faults, seed, folder, turn, n_turns):
    """Every n_turns-th try."""
    whole = duration(folder)
    for number in range(first + turn, first + tries, n_turns):
        draw = random.Random(f"{seed}/{number}")
        fault = faults[number % len(faults)]
        with tempfile.TemporaryDirectory(dir=folder) as place:
            with make_hosts(pathlib.Path(place), {"disk": range(N_HOSTS), "version": range(N_HOSTS)}.get(fault, (1, 2))) as hosts:
                yield {**run_try(hosts, draw, whole, fault), "number": number}


def run(tries, first, faults, seed, n_turns, show):
    seen, n_met, n_bad = collections.Counter(), collections.Counter(), 0
    with tempfile.TemporaryDirectory(prefix="crun-faults-") as folder:
        for result in turns.results_of(functools.partial(play, tries, first, faults, seed, folder), min(n_turns, tries)):
            seen[result["fault"], result["nodes"], result["code"]] += 1
            n_met[result["fault"]] += bool(result["met"])
            n_bad += bool(result["wrong"])
            if result["wrong"] or show:
                print("try {number}: {fault} of host{host}, --nnodes={nodes}, after {moment:.3f} s (met {met!r}): exit code {code} after {took:.1f} s; ".format(**result)
                      + f"{'; '.join(result['wrong']) or 'fine'}\n{result['text'][-1500:]}", flush=True)
    return seen, n_met, n_bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tries", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first try, to repeat one of a seed")
    parser.add_argument("--at-once", type=int, default=3, help="jobs")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--show", action="store_true", help="the output of every try")
    parser.add_argument("faults", nargs="*", choices=[[], *FAULTS], help=", ".join(FAULTS))
    args = parser.parse_args()
    if ssh_hosts.missing():
        print(ssh_hosts.missing())
        return 2
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):  # crun leaves alone what it was started to ignore
        signal.signal(number, signal.SIG_DFL)
    print(f"seed {args.seed}", flush=True)
    begin = time.monotonic()
    seen, n_met, n_bad = run(args.tries, args.first, tuple(args.faults) or FAULTS, args.seed, args.at_once, args.show)
    for (fault, n_nodes, code), n in sorted(seen.items(), key=str):
        print(f"{fault:13} --nnodes={n_nodes:3} exit code {code}: {n}")
    print("met a process: " + ", ".join(f"{fault} {n}" for fault, n in n_met.items() if n))
    print(f"{sum(seen.values())} faults in {time.monotonic() - begin:.0f} s: {n_bad} wrong")
    return 1 if n_bad else 0


if __name__ == "__main__":
    sys.exit(main())
