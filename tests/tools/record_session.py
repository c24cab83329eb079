#!/usr/bin/env python3
"""Records what crun and crunctl show on a terminal and draws it as an SVG. Nothing is composed by hand: the commands run on a
pseudo-terminal.

Usage: record_session.py [--build DIR] [--what session|top|status|hang] [--out FILE]

session  a job starts, a worker is killed, crun reports it, the job resumes from its snapshot and ends
top      crunctl top of a job of four ranks
status   crunctl status of the same job
hang     a rank of a job is stopped, and crun reports which one the others wait for

The pictures of the README: --what NAME --out docs/NAME.svg
"""

import argparse
import fcntl
import html
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

from tree import ROOT

COLUMNS, ROWS = 128, 50
TOP_ROWS = 13
LOOKS = 4       # pictures of top before the one that is drawn
TIMEOUT_S = 300
SHOWN = ["crun --standalone --nproc-per-node=2 --max-restarts=3 \\",
         "    ./train mnist --limit 12800 --epochs 3 --snapshot-dir snapshots --snapshot-every 20"]
EPOCHS_BEFORE_KILL = 1


class Screen:
    """The part of a terminal that these programs use: lines, CR, BS, tabs, moves, erasing, and the colours of SGR."""

    CONTROL = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b.|[\r\n\b\t]|[^\x1b\r\n\b\t]+")

    def __init__(self):
        self.lines, self.row, self.column, self.style = [[]], 0, 0, ""

    def feed(self, text):
        for m in self.CONTROL.finditer(text):
            token = m.group()
            if token == "\n":
                self.move(self.row + 1, 0)
            elif token == "\r":
                self.column = 0
            elif token == "\b":
                self.column = max(self.column - 1, 0)
            elif token == "\t":
                self.put(" " * (8 - self.column % 8))
            elif m.group(2) == "m":
                self.style = self.sgr(m.group(1))
            elif m.group(2) == "K":
                del self.lines[self.row][self.column:]
            elif m.group(2) == "J":
                del self.lines[self.row][self.column:], self.lines[self.row + 1:]
            elif m.group(2) == "H":
                row, column = ([int(n) for n in m.group(1).split(";")] if m.group(1) else [1, 1])
                self.move(row - 1, column - 1)
            elif token[0] != "\x1b":
                self.put(token)

    def move(self, row, column):
        self.lines.extend([] for _ in range(row + 1 - len(self.lines)))
        self.row, self.column = row, column

    def sgr(self, codes):
        style = self.style
        for code in (codes or "0").split(";"):
            if code in ("", "0", "39", "22"):
                style = ""
            elif code in STYLES:
                style = code
        return style

    def put(self, text):
        for c in text:
            if self.column == COLUMNS:
                self.move(self.row + 1, 0)
            line = self.lines[self.row]
            line.extend([(" ", "")] * (self.column - len(line)))
            line[self.column:self.column + 1] = [(c, self.style)]
            self.column += 1


STYLES = {"1": "#ffffff", "2": "#8b949e", "7": "#79c0ff", "31": "#ff7b72", "32": "#7ee787", "33": "#e3b341", "34": "#79c0ff",
          "35": "#d2a8ff", "36": "#76e3ea", "91": "#ff7b72", "92": "#7ee787", "93": "#e3b341", "94": "#79c0ff"}
TYPED = "\x1b[1m"       # what a user types
NOTE = "\x1b[2m"        # what this program adds


def worker_below(pid, rank):
    """The worker of that rank among the descendants of a process, by its environment."""
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            try:
                environment = pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"RANK=%d" % rank in environment:
                return int(child)
            found = worker_below(child, rank)
            if found:
                return found
    return None


def start(command, folder, build, rows=ROWS):
    """(process, the terminal's other end)"""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, COLUMNS, 0, 0))
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "CRUN_", "CRW_", "TORCHELASTIC_"))}
    env.update(TERM="xterm-256color", OMP_NUM_THREADS="1", TMPDIR=folder, XDG_RUNTIME_DIR=folder, XDG_STATE_HOME=folder,
               PATH=f"{build}/launcher:{env.get('PATH', '/usr/bin:/bin')}")
    process = subprocess.Popen(["sh", "-c", "exec " + command], cwd=folder, env=env, stdin=slave, stdout=slave, stderr=slave,
                               start_new_session=True)
    os.close(slave)
    return process, master


def record(build, folder):
    screen = Screen()
    screen.feed(f"{TYPED}$ " + f"\r\n{TYPED}".join(SHOWN) + "\x1b[0m\r\n")
    os.symlink(build / "worker-runtime" / "train", f"{folder}/train")
    process, master = start(" ".join(line.rstrip("\\") for line in SHOWN), folder, build)
    text, killed, deadline = "", False, time.monotonic() + TIMEOUT_S
    try:
        while True:
            if time.monotonic() > deadline:
                raise SystemExit("record_session: the job takes too long")
            ready, _, _ = select.select([master], [], [], 0.05)
            if ready:
                try:
                    piece = os.read(master, 65536).decode(errors="replace")
                except OSError:     # EIO: the last process has closed the terminal
                    break
                text += piece
                screen.feed(piece)
            snapshots = list(pathlib.Path(folder, "snapshots").glob("snap-*"))
            if not killed and text.count("epoch") >= EPOCHS_BEFORE_KILL and text.endswith("\n") and snapshots:
                time.sleep(0.3)     # into the next epoch
                victim = worker_below(process.pid, 1)
                if victim:
                    screen.feed(f"{TYPED}$ kill -9 {victim}\x1b[0m{NOTE}    # the worker of rank 1, from another terminal\x1b[0m\r\n")
                    os.kill(victim, signal.SIGKILL)
                    killed = True
    finally:
        if process.poll() is None and time.monotonic() > deadline:
            process.kill()
        os.close(master)
    code = process.wait()
    if code or not killed or "resume" not in text:
        raise SystemExit(f"record_session: exit code {code}, killed: {killed}; the job did not resume\n{text}")
    screen.feed(f"{TYPED}$ echo $?\x1b[0m\r\n{code}\r\n")
    return screen.lines


def read_piece(master, deadline):
    """Text of a terminal; "" when it has ended."""
    if not select.select([master], [], [], max(deadline - time.monotonic(), 0))[0]:
        raise SystemExit("record_session: a program takes too long")
    try:
        return os.read(master, 65536).decode(errors="replace")
    except OSError:     # EIO: the last process has closed the terminal
        return ""


def look(build, folder, words):
    """The lines that crunctl shows: at its end, or of top after some pictures."""
    screen = Screen()
    screen.feed(f"{TYPED}$ crunctl {words}\x1b[0m\r\n")
    process, master = start(f"crunctl {words}", folder, build, TOP_ROWS)
    text, deadline = "", time.monotonic() + TIMEOUT_S
    while text.count("\x1b[H") <= LOOKS and (piece := read_piece(master, deadline)):
        text += piece
    process.terminate()
    process.wait()
    os.close(master)
    if words != "top":
        screen.feed(text)
        return screen.lines
    picture = Screen()
    picture.feed(text.split("\x1b[H")[LOOKS - 1])
    return screen.lines[:1] + picture.lines


def record_look(build, folder, words):
    """A job of four ranks."""
    os.symlink(build / "worker-runtime" / "train", f"{folder}/train")
    process, master = start("crun --rdzv-id=train-7 --rdzv-backend=c10d --rdzv-endpoint=localhost:0 --nnodes=1 --nproc-per-node=4 "
                            "--redirects=3 --log-dir=logs ./train mnist --epochs 1000", folder, build)
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while not any("epoch" in p.read_text() for p in pathlib.Path(folder).glob("logs/*/*/*/stdout.log")):
            if time.monotonic() > deadline or process.poll() is not None:
                raise SystemExit("record_session: the job reports no epoch")
            time.sleep(0.1)
        return look(build, folder, words)
    finally:
        process.terminate()
        while read_piece(master, time.monotonic() + TIMEOUT_S):
            pass
        process.wait()
        os.close(master)


def record_hang(build, folder):
    """SIGSTOP of a rank: the others wait for it in a collective."""
    shown, rank = "crun --standalone --nproc-per-node=4 --hang-timeout=5 --log-dir=logs ./train mnist --epochs 1000", 2
    screen = Screen()
    screen.feed(f"{TYPED}$ {shown}\x1b[0m\r\n")
    os.symlink(build / "worker-runtime" / "train", f"{folder}/train")
    process, master = start(shown, folder, build)
    text, deadline, stopped = "", time.monotonic() + TIMEOUT_S, False
    try:
        while "missing\r\n" not in text and (piece := read_piece(master, deadline)):
            text += piece
            screen.feed(piece.replace(folder, "/job"))
            if not stopped and "epoch" in text and (victim := worker_below(process.pid, rank)):
                os.kill(victim, signal.SIGSTOP)
                stopped = True
                screen.feed(f"\r\n{TYPED}$ kill -STOP {victim}\x1b[0m{NOTE}    # the worker of rank {rank}, from another terminal\x1b[0m\r\n")
    finally:
        process.send_signal(signal.SIGTERM)
        while read_piece(master, time.monotonic() + TIMEOUT_S):
            pass
        process.wait()
        os.close(master)
    if "missing" not in text:
        raise SystemExit(f"record_session: no hang was reported\n{text}")
    return screen.lines


LABELS = {"session": "A terminal session: a job starts, a worker is killed, crun reports it, the job resumes",
          "top": "crunctl top: a job of four ranks", "status": "crunctl status: a job of four ranks",
          "hang": "A terminal session: a worker is stopped, and crun reports the rank that the others wait for"}


def runs(line):
    """(column, text, style) of each stretch of one style."""
    found = []
    for column, (c, style) in enumerate(line):
        if found and found[-1][2] == style and found[-1][0] + len(found[-1][1]) == column:
            found[-1][1] += c
        else:
            found.append([column, c, style])
    return [r for r in found if r[1].strip()]


def draw(lines, label):
    while lines and not lines[-1]:
        lines.pop()
    w, h, pad = 8.0, 18, 16
    width, height = COLUMNS * w + 2 * pad, len(lines) * h + 2 * pad
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height}" viewBox="0 0 {width:g} {height}" '
           f'role="img" aria-label="{label}">',
           f'<rect width="{width:g}" height="{height}" rx="8" fill="#0d1117"/>',
           '<g font-family="ui-monospace,Menlo,Consolas,DejaVu Sans Mono,monospace" font-size="13" fill="#c9d1d9" '
           'xml:space="preserve">']
    for i, line in enumerate(lines):
        for column, text, style in runs(line):
            text = text.rstrip()
            fill = f' fill="{STYLES[style]}"' if style else ""
            out.append(f'<text x="{pad + column * w:g}" y="{pad + (i + 1) * h - 5}" textLength="{len(text) * w:g}"'
                       f'{fill}>{html.escape(text)}</text>')
    return "\n".join(out + ["</g>", "</svg>", ""])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=os.environ.get("CRUN_BUILD", str(ROOT / "build")))
    parser.add_argument("--what", choices=sorted(LABELS), default="session")
    parser.add_argument("--out", help="the SVG file; without it the text goes to standard output")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="crun-session.") as folder:
        build = pathlib.Path(args.build).resolve()
        recorders = {"session": record, "hang": record_hang}
        lines = recorders[args.what](build, folder) if args.what in recorders else record_look(build, folder, args.what)
    if args.out:
        pathlib.Path(args.out).write_text(draw(lines, LABELS[args.what]))
    for line in lines:
        print("".join(c for c, _ in line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
