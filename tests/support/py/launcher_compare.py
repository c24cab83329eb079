"""What of two launches (launcher_pair.Seen) differs, and which of it is intended.

A Difference belongs to an aspect ("exit code", "environment of 0.1: MASTER_ADDR", ...). INTENDED has, for each title
in crun(1)'s list of differences, a function that says whether a difference is of that kind. Some kinds show in every
row (EVERYWHERE); the others only where the row names them, and there they have to show.
"""

import collections
import json
import os
import re

Difference = collections.namedtuple("Difference", "aspect theirs ours")
ABSENT = "(absent)"

UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
LOG_RECORD = re.compile(r"^[IWED]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ [^ ]+\].*$")
BETWEEN_TRACEBACKS = ("", "During handling of the above exception, another exception occurred:",
                      "The above exception was the direct cause of the following exception:")
TABLE = re.compile(r"^=+\n.* FAILED\n-+\n.*?^=+\n", re.M | re.S)


# ---------------------------------------------------------------- what is the same in other words

def plain(text):
    """Without what differs from one run to the next."""
    text = re.sub(rf"{UUID}|(?<!\d)\d{{30,40}}(?!\d)", "<uuid>", text)
    text = re.sub(r"/bin/python3?(?=: No module)", "/bin/python", text)
    text = re.sub(r"torchelastic_[A-Za-z0-9_]+", "torchelastic_RANDOM", text)
    text = re.sub(r"_[A-Za-z0-9_]{6,8}/attempt_", "_RANDOM/attempt_", text)
    # Without --log-dir, and without files of output, the folder of crun is flat.
    text = re.sub(r"(torchelastic_RANDOM)/\S+_RANDOM/attempt_(\d+)/(\d+)/(error\.json)", r"\1/attempt_\2.\3.\4", text)
    return re.sub(r"\bpid \d+\b|\bPID \d+\b", "pid N", text)


def plain_variable(name, value, port):
    value = re.sub(rf"(?<![\w-]){port}(?![\w-])", "<given port>", value)
    if name == "MASTER_PORT" and value.isdigit():
        return "<port>"
    return plain(value) if name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE") else value


def plain_command(command):
    """The interpreter goes by several names."""
    head = "python" if re.match(r"python[0-9.]*$", os.path.basename(command[0])) else command[0]
    return [head, *command[1:]]


def split_stderr(text):
    """(the failure tables, what workers wrote, what the launcher said)"""
    tables = TABLE.findall(text)
    text, _, usage = text.partition("\nusage: ") if not text.startswith("usage: ") else ("", "", text)
    written, said, trace = [], [usage], None
    for line in TABLE.sub("", text).split("\n"):  # other white space may be in a value that a message repeats
        if line.startswith("Traceback (most recent call last)"):
            trace = []
        if trace is not None:
            trace.append(line)
            if line and not line.startswith((" ", "Traceback")):
                # One of Python in the launcher, or one that a worker has shown.
                (said if any("torch/distributed/" in entry for entry in trace) else written).extend(trace)
                trace = None
        elif LOG_RECORD.match(line) or line.startswith(("crun: ", "usage: ")) or line in BETWEEN_TRACEBACKS:
            said.append(line)
        else:
            written.append(line)
    return tables, written, "\n".join(said)


def plain_failure(block):
    block = re.sub(r"^\[\d+\]:\n", "", block.strip("\n"))
    block = re.sub(r"time      : [-\d]+_[:\d]+", "time      : <time>", block)
    block = re.sub(r"host      : .*", "host      : <host>", block)
    block = re.sub(r"\(pid: \d+\)", "(pid: N)", block)
    return plain(block)


def plain_table(table):
    """Title, the other failures in any order, the first cause. Rules as they are short of their length."""
    title, others, root = re.split(r"^-+\n", re.sub(r"^=+\n|^=+\n?\Z", "", table, flags=re.M), flags=re.M)
    others = re.split(r"^(?=\[\d+\]:\n)", others.removeprefix("Failures:\n"), flags=re.M)
    return {"title": title.strip(), "others": sorted(plain_failure(block) for block in others if block.strip()),
            "root": plain_failure(root.removeprefix("Root Cause (first observed failure):\n"))}


def plain_log(name, text):
    if name.endswith("error.json") and text:
        error = json.loads(text)
        if isinstance(error.get("message"), dict):
            error["message"].get("extraInfo", {}).pop("timestamp", None)
        return plain(json.dumps(error, sort_keys=True))
    if "/filtered_" in name:  # of all ranks, as they came
        text = "".join(sorted(text.splitlines(keepends=True)))
    return plain(text)


def lines_of(text, row):
    """By prefix: the order between ranks is chance, that of one rank is not."""
    streams = collections.defaultdict(list)
    for line in text:
        prefix = re.match(r"\[\w+\d+\]:|", line).group()
        streams[prefix].append(plain(line))
    return sum((sorted(lines) if row.shuffles or not prefix else lines for prefix, lines in sorted(streams.items())), [])


# ---------------------------------------------------------------- differences

def compare_maps(aspect, theirs, ours):
    for name in sorted(set(theirs) | set(ours)):
        a, b = theirs.get(name, ABSENT), ours.get(name, ABSENT)
        if a != b:
            yield Difference(f"{aspect}: {name}", a, b)


def compare_workers(seen):
    theirs, ours = (side.workers for side in seen)
    if set(theirs) != set(ours):
        yield Difference("workers", sorted(theirs), sorted(ours))
    for name in sorted(set(theirs) & set(ours)):
        a, b = dict(theirs[name]), dict(ours[name])
        environments = [{n: plain_variable(n, v, side.port) for n, v in worker.pop("environment").items()}
                        for side, worker in zip(seen, (a, b))]
        yield from compare_maps(f"environment of {name}", *environments)
        a["command"], b["command"] = plain_command(a["command"]), plain_command(b["command"])
        yield from compare_maps(f"worker {name}", a, b)


def compare(row, theirs, ours):
    """All differences between two Seen, intended or not."""
    found = []
    if theirs.code != ours.code:
        found.append(Difference("exit code", theirs.code, ours.code))
    found += compare_workers((theirs, ours))
    sides = [split_stderr(seen.err) for seen in (theirs, ours)]
    tables = [[plain_table(table) for table in side[0]] for side in sides]
    if len(tables[0]) != len(tables[1]):
        found.append(Difference("failure tables", len(tables[0]), len(tables[1])))
    for a, b in zip(*tables):
        found += compare_maps("failure table", a, b)
    written = [lines_of(side[1], row) for side in sides]
    if written[0] != written[1]:
        found.append(Difference("stderr", *written))
    out = [lines_of(seen.out.splitlines(), row) for seen in (theirs, ours)]
    if out[0] != out[1]:
        found.append(Difference("stdout", *out))
    logs = [{plain(name): plain_log(name, text) for name, text in seen.logs.items()} for seen in (theirs, ours)]
    found += compare_maps("logs", *logs)
    litter = [[re.sub(r"torchelastic_.*", "torchelastic_RANDOM", name) for name in seen.litter] for seen in (theirs, ours)]
    if litter[0] != litter[1]:
        found.append(Difference("left in TMPDIR", *litter))
    if theirs.left != ours.left:
        found.append(Difference("left running", theirs.left, ours.left))
    for name, seen in (("theirs", theirs), ("ours", ours)):
        if row.says and row.says not in seen.err:
            found.append(Difference(f"said by {name}: {row.says}", seen.err[-500:], ""))
    return found


# ---------------------------------------------------------------- intended

def is_environment(d, name):
    return d.aspect.startswith("environment of ") and d.aspect.endswith(f": {name}")


def is_notice(d):
    ours = ("CRUN_NOTICE_FD", "CRUN_GENERATION", "CRUN_INSTANCE", "CRUN_SHUTDOWN_TIMEOUT", "CRUN_STATE_FD", "CRUN_KEY_FD",
            "CRUN_BLOCKS_FD")
    return any(is_environment(d, name) for name in ours) or (
        "descriptors" in d.aspect and d.ours == sorted([*d.theirs, 3, 4, 7]))


def is_run_path(d):
    """torchrun's workers are children of multiprocessing there, and share its session and descriptors."""
    if d.aspect.endswith(": command"):
        return "multiprocessing" in str(d.theirs) or "run path" in d.theirs
    if d.aspect.endswith(("error.json", "failure table: root")):  # the launcher's frames in it
        return all("ValueError: boom" in side for side in (d.theirs, d.ours))
    return d.aspect.endswith((": own session", ": descriptors")) or d in (
        ("stderr", [], ["and a second line"]), ("failure table: title", "run_script_path FAILED", "recorded.py FAILED")) or (
        d.aspect == "left in TMPDIR" and not d.ours)


def is_missing_program(d):
    """Python says it after its start, crun before anything is started; both exit with 1."""
    if d.aspect == "stderr":
        return not d.ours and ("can't open file" in str(d.theirs) or "can't find '__main__'" in str(d.theirs))
    return (d.aspect == "failure tables" and (d.theirs, d.ours) == (1, 0)) or (
        d.aspect.startswith("logs: ") and d.ours == ABSENT) or (d.aspect == "workers" and d.ours == (0, d.ours[1])) or (
        d.aspect == "exit code" and isinstance(d.ours, tuple) and "No such file" in d.ours[1])


def runs_here_only(d):
    """torchrun refuses or fails, crun runs it."""
    return (d.aspect == "exit code" and d.theirs in (1, 2) and d.ours in (0, (0, ""))) or d.aspect in (
        "workers", "failure tables", "stdout", "stderr")


def is_without_files(d):
    return d.aspect in ("stdout", "stderr") or d.aspect.endswith(": null")


def is_absolute_log_folder(d):
    """A relative --log-dir: crun's paths are absolute, torchrun's are with Python 3.12 and later."""
    return re.sub(r"/[^'\"\s]*/here/(?=logs/)", "", str(d.ours)) == str(d.theirs) != str(d.ours)


# Title in crun(1) -> whether a difference is of this kind.
INTENDED = {
    "Notices": is_notice,
    "Address": lambda d: is_environment(d, "MASTER_ADDR") and d.ours == "127.0.0.1",
    "Temporary folder": lambda d: d.aspect == "left in TMPDIR" and d.theirs == ["torchelastic_RANDOM"] and not d.ours,
    "Log folder": is_absolute_log_folder,
    "Words behind the program": runs_here_only,
    "Own programs": runs_here_only,
    "Missing program": is_missing_program,
    "Run path": is_run_path,
    "Long ranks": runs_here_only,
    "Progress bars": lambda d: d.aspect == "stdout" and [line for line in d.theirs if "50%" not in line] == d.ours,
    "Without log files": is_without_files,
    "Filtered logs": lambda d: d.aspect.endswith("filtered_stdout.log") and (d.theirs, d.ours) == ("", ABSENT),
    "Python inside": lambda d: is_environment(d, "TORCHINDUCTOR_CACHE_DIR") or (
        d.aspect == "left in TMPDIR" and "torchinductor_root" in d.theirs),
    "Nothing is left": lambda d: d.aspect == "left running" and d.theirs and not d.ours,
    "User signals": lambda d: (d.aspect, d.theirs, d.ours) in (("exit code", -10, 1), ("failure tables", 0, 1)),
    "Ignored SIGHUP": lambda d: d.aspect.endswith(": signals ignored"),
}
EVERYWHERE = ("Notices", "Address", "Temporary folder", "Log folder")


def unintended(row, differences):
    """The differences nobody intended, and titles the row names that did not show."""
    titles = [*EVERYWHERE, *row.differs]
    bad = [d for d in differences if not any(INTENDED[title](d) for title in titles)]
    for title in row.differs:
        if not any(INTENDED[title](d) for d in differences):
            bad.append(Difference(f"intended difference not seen: {title}", "", ""))
    return bad
