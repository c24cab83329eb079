"""How long no crund serves agents after the one that leads was killed (crund --state=etcd://..., three members, three crunds).

    tests/bench/run failover_bench.py [N]        (default: 21 kills of each kind)

An agent is served when its hello is answered with a view other than "elsewhere". Each of the remaining crunds is asked
without a pause. Prints the median, the ninth decile and the largest of N gaps, alone and with the member that leads etcd; then, for numbers of agents, the time until all have
their rank, and the writes to etcd of a generation (its revision counts them).
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from etcd_crunds import BUILD, open_place
from session_agent import Agent


def is_served(port, job):
    try:
        with Agent(port, job=job, timeout=5) as agent:
            served = agent.join().view()["view"] != "elsewhere"
            if served:
                agent.say("left")
            return served
    except (OSError, AssertionError, TimeoutError):
        return False


def wait_served(ports, job):
    while True:
        for port in ports:
            if is_served(port, job):
                return time.monotonic()


def kill_leader(place, turn, with_member=False):
    leader = place.leader()
    member = next(m for m in place.members if m.leads()) if with_member else None
    others = [p for i, p in enumerate(place.ports) if i != leader]
    began = time.monotonic()
    place.crunds[leader].process.kill()
    if member:
        member.kill()
    gap = wait_served(others, f"other-{turn}") - began
    if member:
        member.start()
    place.start_crund(leader)
    time.sleep(2 if member else 1)  # it looks at the leader's key, and the member has what the others have
    return gap


def revision(place):
    return int(place.members[0].ask("kv/range", {"key": "AA=="})["header"]["revision"])


def print_generation(place, n):
    before = revision(place)
    p = subprocess.run([BUILD / "tests" / "bench" / "rounds_load", "--port", str(place.ports[place.leader()]), "--agents",
                        str(n), "--rounds", "4"], capture_output=True, text=True)
    if p.returncode != 0:
        sys.exit(f"rounds_load: {p.stderr}{place.logs()}")
    print(f"{n} agents have their rank after {json.loads(p.stdout)['join_ms'] / 1000:.3f} s; writes to etcd for 5 generations: "
          f"{revision(place) - before}")


def main():
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 21
    with tempfile.TemporaryDirectory() as folder, open_place(pathlib.Path(folder)) as place:
        time.sleep(1)
        for with_member in (False, True):
            gaps = sorted(kill_leader(place, i + n * with_member, with_member) for i in range(n))
            print(f"leader killed{', and the leader of etcd' if with_member else ''}, {n} times: median {statistics.median(gaps):.3f} s, "
                  f"90 % {gaps[int(n * 0.9)]:.3f} s, largest {gaps[-1]:.3f} s", flush=True)
        for agents in (10, 100, 500, 1000):
            print_generation(place, agents)


if __name__ == "__main__":
    main()
