"""A worker that writes down what it was started with, then ends as its arguments say.

Words it knows (all others are only written down); RANKS is "*" or ranks joined by "+":

    say              a line on stdout and one on stderr
    say=TEXT         this text on both, with \\n, \\r and \\t as in C, and $RANK
    exit=RANKS:CODE  these ranks exit with CODE
    kill=RANKS:NAME  these ranks send themselves this signal
    hold=RANKS       these ranks wait for a signal
    trap=RANKS:CODE  these ranks wait for SIGTERM and exit with CODE because of it
    deaf=RANKS       these ranks ignore SIGTERM and wait
    first=N          in the first N attempts only: the words exit, kill, hold, trap and deaf count
    slow             exit and kill come 3 s later: ranks that do neither have ended by then
    read             standard input is written down
"""

import json
import os
import resource
import signal
import sys
import time


def status_mask(name):
    with open("/proc/self/status") as f:
        return next(line.split()[1] for line in f if line.startswith(name))


def describe():
    with open("/proc/self/cmdline", "rb") as f:
        command = f.read().decode(errors="surrogateescape").split("\0")[:-1]
    return {
        "environment": dict(os.environ),
        "arguments": sys.argv,
        "command": command,
        "folder": os.getcwd(),
        "own session": os.getsid(0) == os.getpgid(0) == os.getpid(),
        "descriptors": sorted(int(n) for n in os.listdir("/proc/self/fd") if os.path.lexists("/proc/self/fd/" + n)),
        "signals ignored": status_mask("SigIgn:"),
        "signals blocked": status_mask("SigBlk:"),
        "open files limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "null": [os.path.realpath(f"/proc/self/fd/{fd}") == "/dev/null" for fd in (1, 2)],
    }


def write_down(what):
    name = f"{os.environ['PROBE_DIR']}/{os.environ['TORCHELASTIC_RESTART_COUNT']}.{os.environ['RANK']}.json"
    with open(name + ".new", "w") as f:
        json.dump(what, f)
    os.rename(name + ".new", name)


def has_spoken(rank):
    """The name of the file that says so."""
    return f"{os.environ['PROBE_DIR']}/{os.environ['TORCHELASTIC_RESTART_COUNT']}.{rank}.spoken"


def wait_for_others():
    """A failure ends the others: not before they have written down what there is, and said what they had to."""
    names = [has_spoken(rank) for rank in range(int(os.environ["WORLD_SIZE"]))]
    while not all(map(os.path.exists, names)):
        time.sleep(0.01)


def concerns(ranks):
    return ranks == "*" or os.environ["RANK"] in ranks.split("+")


def hold():
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # without Python's traceback
    open(f"{os.environ['PROBE_DIR']}/ready.{os.environ['RANK']}", "w").close()
    while True:
        signal.pause()


def end_by(word):
    kind, _, rest = word.partition("=")
    ranks, _, how = rest.partition(":")
    if not concerns(ranks):
        return
    if kind == "trap":
        signal.signal(signal.SIGTERM, lambda *_: os._exit(int(how)))
    if kind == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if kind in ("hold", "trap", "deaf"):
        hold()
    wait_for_others()
    while any(word.startswith(("trap=", "deaf=")) for word in sys.argv) and not any(
            name.startswith("ready.") for name in os.listdir(os.environ["PROBE_DIR"])):
        time.sleep(0.01)
    if "slow" in sys.argv:
        time.sleep(3)
    if kind == "exit":
        os._exit(int(how))
    signal.signal(getattr(signal, how), signal.SIG_DFL) if how != "SIGKILL" else None
    os.kill(os.getpid(), getattr(signal, how))
    hold()


def main():
    what = describe()
    words = sys.argv[1:]
    for word in words:
        if word == "read":
            what["input"] = sys.stdin.read()
    write_down(what)
    for word in words:
        kind, _, text = word.partition("=")
        if kind == "say":
            text = text or "text of $RANK\\n"
            text = text.replace("\\n", "\n").replace("\\r", "\r").replace("\\t", "\t").replace("$RANK", os.environ["RANK"])
            for out, name in ((sys.stdout, "out"), (sys.stderr, "err")):
                out.write(text.replace("text", name))
                out.flush()
    open(has_spoken(os.environ["RANK"]), "w").close()
    attempts = next((int(word[6:]) for word in words if word.startswith("first=")), 1 << 30)
    if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < attempts:
        for word in words:
            if word.split("=")[0] in ("exit", "kill", "hold", "trap", "deaf"):
                end_by(word)


if __name__ == "__main__":
    main()
