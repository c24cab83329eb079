"""The output of ranks on many hosts, as `crun --hosts` shows it: front_show gets frames, as channels would bring them."""

import collections
import os
import pathlib
import random
import re
import signal
import struct
import subprocess
import threading
import time

import pytest

import jobs
import test_crun_output

OPEN, DATA, END, NOTE, RESULT = 6, 7, 8, 13, 14
STDOUT, STDERR, ERROR_FILE, STACKS, NCCL_TEXT, NCCL_JSON = 1, 2, 6, 7, 8, 9
WINDOW = 256 << 10
SEED = random.SystemRandom().randrange(1 << 32)


fronts = []


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    for front in fronts:
        front.p.kill()
        front.p.wait()
    fronts.clear()


class Front:
    """front_show; streams are (host, number), with the windows that a channel would grant."""

    def __init__(self, *options, hosts=("a", "b"), ranks=0, env=None, before=(), drains=True):
        grants, theirs = os.pipe()
        self.windows, self.changed, self.streams = {}, threading.Condition(), collections.Counter()
        self.p = subprocess.Popen([*before, str(jobs.build_folder() / "tests/workers/front_show"), "--standalone", *options, "--no-python", "true"],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=(theirs,),
                                  env={**os.environ, "FRONT_HOSTS": " ".join(hosts), "FRONT_RANKS": str(ranks), "FRONT_GRANTS": str(theirs), **(env or {})})
        os.close(theirs)
        fronts.append(self)
        self.shown = [b"", b""]
        self.readers = [threading.Thread(target=self._read_console, args=(i,), daemon=True) for i in (0, 1)]
        if drains:
            self.drain()
        self.reader = threading.Thread(target=self._read_grants, args=(open(grants, "rb"),), daemon=True)
        self.reader.start()

    def _read_grants(self, grants):
        while record := grants.read(12):
            host, number, n = struct.unpack("<3I", record)
            with self.changed:
                self.windows[host, number] += n
                assert self.windows[host, number] <= WINDOW
                self.changed.notify_all()

    def _read_console(self, i):
        self.shown[i] = (self.p.stdout, self.p.stderr)[i].read()

    def drain(self):
        for reader in self.readers:
            reader.start()

    def send(self, host, kind, number, payload=b""):
        self.p.stdin.write(struct.pack("<IBBHII", host, kind, 0, 0, number, len(payload)) + payload)
        self.p.stdin.flush()

    def open(self, host, rank, local_rank=0, which=STDOUT, attempt=0):
        self.streams[host] += 1
        number = self.streams[host]
        self.windows[host, number] = WINDOW
        self.send(host, OPEN, number, struct.pack("<4I", which, rank, local_rank, attempt))
        return host, number

    def write(self, stream, data, timeout=60):
        """False: the window stays shut."""
        for at in range(0, len(data), 65536):
            piece = data[at:at + 65536]
            with self.changed:
                if not self.changed.wait_for(lambda: self.windows[stream] >= len(piece), timeout):
                    return False
                self.windows[stream] -= len(piece)
            self.send(stream[0], DATA, stream[1], piece)
        return True

    def close(self, *streams):
        for host, number in streams:
            self.send(host, END, number)

    def say(self, text):
        self.send(0, NOTE, 0, text.encode())

    def end(self, timeout=60):
        """Standard output and standard error."""
        self.p.stdin.close()
        out, err = self.wait(0, timeout)
        assert {stream: window for stream, window in self.windows.items() if window != WINDOW} == {}
        return out, err

    def wait(self, code, timeout=60):
        assert self.p.wait(timeout) == code, SEED
        for thread in (*self.readers, self.reader):
            thread.join(10)
        return self.shown[0].decode(), self.shown[1].decode()


def logs(folder):
    """Contents of the log files, by host and path behind the run's folder."""
    return {re.sub("/[^/]*/", ":", str(path.relative_to(folder)), count=1): path.read_bytes() for path in pathlib.Path(folder).rglob("*.log")}


def lines_of(rng, rank, n_bytes):
    """Lines of many lengths. The console breaks lines of 64 KiB."""
    lines = []
    while n_bytes > 0:
        length = rng.choice((0, 5, 80, 300, 5000, 60000 if rng.random() < 0.02 else 10))
        lines.append(b"%d %d " % (rank, len(lines)) + b"x" * length)
        n_bytes -= len(lines[-1])
    return lines


def feed(front, texts, rng):
    """Bytes of all streams, in pieces of random sizes in a random order."""
    left = {stream: 0 for stream in texts}
    while left:
        stream = rng.choice(list(left))
        n = rng.choice((1, 10, 1000, 65536))
        assert front.write(stream, texts[stream][left[stream]:left[stream] + n])
        left[stream] += n
        if left[stream] >= len(texts[stream]):
            del left[stream]
            front.close(stream)


@pytest.mark.parametrize("options", [[], ["-r3"], ["-t3"], ["-r1", "-t2"]], ids=["plain", "files", "both", "each"])
def test_bytes_of_each_stream_keep_their_order(tmp_path, options):
    rng = random.Random(SEED)
    front = Front(*options, f"--log-dir={tmp_path}", "--nproc-per-node=4", hosts=("a", "b", "c"))
    lines, texts = {}, {}
    for rank in range(12):
        for which in (STDOUT, STDERR):
            lines[rank, which] = lines_of(rng, rank, 200000)
            texts[front.open(rank // 4, rank, rank % 4, which)] = b"\n".join(lines[rank, which]) + b"\n"
    feed(front, texts, rng)
    out, err = front.end()
    text = "".join(options)
    found = logs(tmp_path)
    for (rank, which), sent in lines.items():
        shown = (out if which == STDOUT else err).encode().split(b"\n")
        name = "out" if which == STDOUT else "err"
        file = found.get(f"{'abc'[rank // 4]}:attempt_0/{rank % 4}/std{name}.log")
        has_tee = f"t{which}" in text or "t3" in text
        has_file = has_tee or f"r{which}" in text or "r3" in text
        prefix = b"[default%d]:" % (rank % 4) if has_tee else b""
        mine = [line for line in shown if line.startswith(prefix + b"%d " % rank)]
        assert (file == b"\n".join(sent) + b"\n") if has_file else file is None, SEED
        if has_tee or not has_file:
            assert mine == [prefix + line for line in sent], SEED


def test_prefixes_name_the_host_and_each_attempt_has_a_folder(tmp_path):
    front = Front("-t3", f"--log-dir={tmp_path}", "--nproc-per-node=2", "--line-prefix=host", "--duplicate-stdout-filters=apple",
                  "--local-ranks-filter=0", hosts=("n1", "../n/2"))
    for attempt in range(2):
        for host in range(2):
            for local_rank in range(2):
                stream = front.open(host, 2 * host + local_rank, local_rank, attempt=attempt)
                front.write(stream, b"apple %d\npear" % attempt)
                front.close(stream)
    out, err = front.end()
    assert sorted(out.splitlines()) == sorted(f"[default {2 * host}@{name}]: {text}" for host, name in enumerate(("n1", "../n/2"))
                                              for text in ("apple 0", "apple 1", "pear", "pear"))
    found = logs(tmp_path)
    assert len(found) == 12 and found["_._n_2:attempt_1/1/stdout.log"] == b"apple 1\npear"
    assert found["n1:attempt_0/filtered_stdout.log"] == b"[default 0@n1]: apple 0\n"


def test_a_rank_that_prints_nothing_has_a_log_file(tmp_path):
    front = Front("-r1", "-t2", f"--log-dir={tmp_path}", "--nproc-per-node=1")
    for host in range(2):
        front.open(host, host)
        front.close(front.open(host, host, which=STDERR))
    assert front.end() == ("", "")
    assert logs(tmp_path) == {f"{host}:attempt_0/0/std{name}.log": b"" for host in "ab" for name in ("out", "err")}


@pytest.mark.parametrize("options, code, words", [
    (["-r1"], 0, "the workers' output is in"), (["-r1"], 1, "logs are kept in"), (["-t1"], 0, None), (["-t1"], 1, "logs are kept in"),
    (["-r1", "--log-dir={}"], 0, None), (["-r1", "--log-dir={}"], 1, "logs are kept in"), ([], 1, None)])
def test_the_folder_of_logs_is_named_as_on_one_node(tmp_path, options, code, words):
    front = Front(*[option.format(tmp_path / "logs") for option in options], "--nproc-per-node=1",
                  env={"TMPDIR": str(tmp_path), "FRONT_EXIT_CODE": str(code)})
    front.write(front.open(0, 0), b"line\n")
    err = front.end()[1]
    [folder] = [path for path in tmp_path.iterdir() if path.is_dir()] if options else [None]
    assert err == (f"crun: {words} {folder}\n" if words else "")


def test_files_of_hosts_have_names_by_numbers(tmp_path):
    """Nothing of them is shown. Numbers that cannot be make no file, and neither do more files than a host may have."""
    front = Front("-t3", f"--log-dir={tmp_path}", "--nproc-per-node=2")
    expected = {}
    for kind, local_rank, name in ((ERROR_FILE, 1, "1/error.json"), (STACKS, 2, "stacks_2/rank_3.txt"), (STACKS, 4095, "stacks_4095/rank_3.txt"),
                                   (NCCL_TEXT, 2, "stacks_2/nccl_ras.txt"), (NCCL_JSON, 2, "stacks_2/nccl_ras.json")):
        expected[f"b:attempt_5/{name}"] = b"%d\n" % kind * 50000
        stream = front.open(1, 3, local_rank, kind, attempt=5)
        front.write(stream, expected[f"b:attempt_5/{name}"])
        front.close(stream)
    for kind, rank, local_rank, attempt in ((ERROR_FILE, 3, 2, 0), (STACKS, 3, 4096, 0), (NCCL_JSON, 1 << 20, 1, 0), (STACKS, 3, 1, 1 << 31)):
        stream = front.open(1, rank, local_rank, kind, attempt)
        front.write(stream, b"bad")
        front.close(stream)
    for _ in range(4100):
        front.close(front.open(0, 0, 0, ERROR_FILE, attempt=7))
    stream = front.open(0, 0, 0, ERROR_FILE, attempt=8)
    front.write(stream, b"too late")
    assert front.end() == ("", "")
    found = {re.sub("/[^/]*/", ":", str(path.relative_to(tmp_path)), count=1): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {**expected, "a:attempt_7/0/error.json": b""}


def test_filtered_ranks_without_files_are_dropped():
    front = Front("--nproc-per-node=2", "--local-ranks-filter=1", hosts=("a",))
    streams = [front.open(0, rank, rank) for rank in range(2)] + [front.open(0, 7, 7), front.open(0, 1 << 20, 0), front.open(0, 0, 0, attempt=1 << 31)]
    for stream in streams:
        front.write(stream, b"%d\n" % stream[1] * 200000)
    out, err = front.end()
    assert set(out.split()) == {"2"} and err == ""


def test_sentences_stand_behind_the_streams_that_were_closed(tmp_path):
    front = Front("-t3", f"--log-dir={tmp_path}", "--nproc-per-node=1")
    for i in range(40):
        stream = front.open(i % 2, i, which=STDERR, attempt=i)
        front.write(stream, b"line\n" * 20000 + b"last %d\n" % i)
        front.close(stream)
        front.say(f"crun: {i} has ended\n")
    out, err = front.end()
    lines = [line for line in err.splitlines() if "line" not in line]
    assert [line for line in lines if "crun" in line] == [f"crun: {i} has ended" for i in range(40)]
    assert all(lines.index(f"[default0]:last {i}") < lines.index(f"crun: {i} has ended") for i in range(40))


@pytest.mark.parametrize("options", [[], ["-t3"]], ids=["plain", "files"])
def test_late_bytes_of_a_lost_host(tmp_path, options):
    """Another host has taken the rank over before the last bytes of the first one are there. What ended takes no descriptors."""
    front = Front(*options, f"--log-dir={tmp_path}", "--nproc-per-node=1")
    old = front.open(0, 0)
    front.write(old, b"first\nsec")
    new = front.open(1, 0, attempt=1)
    front.write(new, b"new\n")
    jobs.wait_for(lambda: all(window == WINDOW for window in front.windows.values()))
    before = len(os.listdir(f"/proc/{front.p.pid}/fd"))
    for attempt in range(2, 30):
        stream = front.open(1, 0, attempt=attempt)
        front.write(stream, b"later\n")
        front.close(stream)
    front.write(old, b"ond\n")
    jobs.wait_for(lambda: all(window == WINDOW for window in front.windows.values()))
    jobs.wait_for(lambda: len(os.listdir(f"/proc/{front.p.pid}/fd")) <= before)
    out, err = front.end()
    prefix = "[default0]:" if options else ""
    assert sorted(out.splitlines()) == sorted(prefix + line for line in ["first", "new", "second"] + ["later"] * 28)


def resident_kib(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1])


def test_console_that_takes_nothing_shuts_the_windows():
    front = Front("--nproc-per-node=8", hosts=("a",), drains=False)
    streams = [front.open(0, rank, rank) for rank in range(8)]
    before = resident_kib(front.p.pid)
    shut = [not front.write(stream, b"0123456789abcde\n" * (1 << 18), timeout=0.5) for stream in streams]
    assert all(shut)
    if not jobs.is_sanitized():
        assert resident_kib(front.p.pid) - before < 16 * 1024
    assert front.write(front.open(0, 0, which=STDERR), b"free\n")
    front.drain()
    out, err = front.end()
    assert err == "free\n" and set(out.splitlines()) == {"0123456789abcde"}


def test_console_that_takes_nothing_is_abandoned(tmp_path):
    front = Front("-r2", f"--log-dir={tmp_path}", "--nproc-per-node=1", hosts=("a",), drains=False)
    stream, filed = front.open(0, 0), front.open(0, 0, which=STDERR)
    assert not front.write(stream, b"0123456789abcde\n" * (1 << 18), timeout=1)
    assert front.write(filed, b"all of it\n")
    front.say("crun: a sentence\n")
    time.sleep(0.2)
    front.p.send_signal(signal.SIGTERM)
    assert front.p.wait(10) == 0
    front.drain()
    assert front.wait(0)[1] == "crun: a sentence\n"
    assert logs(tmp_path) == {"a:attempt_0/0/stderr.log": b"all of it\n"}


@pytest.mark.parametrize("options", [[], ["-t1"]], ids=["plain", "files"])
def test_signal_ends_the_wait_for_a_console_that_takes_nothing(tmp_path, options):
    front = Front(*options, f"--log-dir={tmp_path}", "--nproc-per-node=1", hosts=("a",), drains=False)
    stream = front.open(0, 0)
    assert front.write(stream, b"0123456789abcde\n" * (1 << 18), timeout=1) == bool(options)
    front.p.send_signal(signal.SIGINT)
    assert front.write(stream, b"0123456789abcde\n" * (1 << 18))
    front.close(stream)
    front.say("crun: a sentence\n")
    front.p.stdin.close()
    assert front.p.wait(30) == 0
    front.drain()
    assert front.wait(0)[1] == "crun: a sentence\n"


def test_disk_that_hangs_holds_its_streams(tmp_path):
    hanging = test_crun_output.hanging_disk(tmp_path, tmp_path / "logs")
    front = Front("-r1", f"--log-dir={tmp_path / 'logs'}", "--nproc-per-node=1", env=hanging)
    streams = [front.open(host, host) for host in range(2)]
    assert front.write(streams[0], b"before\n")
    jobs.wait_for(lambda: logs(tmp_path).get("logs/a:attempt_0/0/stdout.log") or any(logs(tmp_path).values()))
    (tmp_path / "hangs").touch()
    shut = [not front.write(stream, b"0123456789abcde\n" * (1 << 15), timeout=1) for stream in streams]
    assert all(shut)
    free = front.open(0, 0, which=STDERR)
    assert front.write(free, b"free\n" * 100000, timeout=1)
    (tmp_path / "hangs").unlink()
    out, err = front.end()
    assert out == "" and err == "free\n" * 100000
    assert [logs(tmp_path / "logs")[f"{host}:attempt_0/0/stdout.log"][-4:] for host in "ab"] == [b"cde\n", b"cde\n"]


def test_disk_that_hangs_at_the_end_is_left_behind(tmp_path):
    front = Front("-r1", f"--log-dir={tmp_path / 'logs'}", "--nproc-per-node=1", env=test_crun_output.hanging_disk(tmp_path, tmp_path / "logs"))
    (tmp_path / "hangs").touch()
    streams = [front.open(host, host) for host in range(2)]
    for stream in streams:
        front.write(stream, b"line\n")
    front.say("crun: a sentence\n")
    time.sleep(0.3)
    front.p.send_signal(signal.SIGTERM)
    assert front.wait(4, 10) == ("", "crun: a sentence\n")


@pytest.mark.skipif(not test_crun_output.tmpfs_works, reason="no permission for a mount namespace")
@pytest.mark.parametrize("option", ["-t1", "-r1"])
def test_full_disk(tmp_path, option):
    """The rest of the bytes goes to the console, and each host's loss is reported once."""
    kept = tmp_path / "kept"
    kept.mkdir()
    mounted = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size=1m none {kept} && "$@"; e=$?; cp -r {kept} {tmp_path}/copy; exit $e', "-", "timeout", "60"]
    front = Front(option, f"--log-dir={kept}", "--nproc-per-node=2", before=mounted, hosts=("a", "b"), drains=False)
    threading.Timer(0.5, front.drain).start()  # the files are not on the console yet when the rest comes
    rng = random.Random(SEED)
    streams = [front.open(rank // 2, rank, rank % 2) for rank in range(4)]
    sent = {rank: lines_of(rng, rank, 700000) for rank in range(4)}
    feed(front, {stream: b"\n".join(sent[rank]) + b"\n" for rank, stream in enumerate(streams)}, rng)
    out, err = front.end()
    assert sorted(err.splitlines()) == [f"crun: [{host}] cannot write the log files: No space left on device; the console shows what they lack" for host in "ab"]
    files, shown, expected = logs(tmp_path / "copy"), out.splitlines(), []
    for rank in range(4):
        prefix, text = f"[default{rank % 2}]:" if option == "-t1" else "", b"\n".join(sent[rank]) + b"\n"
        file = files[f"{'ab'[rank // 2]}:attempt_0/{rank % 2}/stdout.log"]
        assert text.startswith(file), SEED
        # The line in which the file ends becomes two lines.
        parts = [file] * (option == "-t1") + [text[len(file):]]
        lines = [prefix + line.decode() for part in parts for line in part.splitlines()]
        mine = [line for line in lines if line.startswith(f"{prefix}{rank} ")]
        assert [line for line in shown if line in set(mine)] == mine, SEED
        expected += lines
    assert sorted(shown) == sorted(expected), SEED


def test_no_place_for_log_files(tmp_path):
    (tmp_path / "logs").write_text("a file")
    front = Front("-t1", f"--log-dir={tmp_path / 'logs'}", "--nproc-per-node=1")
    for host in range(2):
        front.write(front.open(host, host), b"line\n")
    out, err = front.end()
    assert out == "[default0]:line\n" * 2
    assert sorted(err.splitlines()) == [f"crun: [{host}] cannot write the log files: Not a directory; the console shows what they lack" for host in "ab"]


FOLDED = """for i in 0 1 2 3; do echo same $i; test $RANK = $i && echo own $RANK; done; test $RANK = 2 || echo most; echo same >&2; echo end"""


@pytest.mark.parametrize("ranks", [4, 0], ids=["known", "unknown"])
def test_lines_are_folded_over_hosts_as_on_one_node(tmp_path, ranks):
    """crun is stopped while its workers write, so that no scheduler makes a rank late."""
    options = ["-t3", "--fold-output", f"--log-dir={tmp_path / 'logs'}", "--line-prefix=<${rank}>"]
    script = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; {FOLDED}; echo > {tmp_path}/wrote$RANK; sleep 1"
    with subprocess.Popen([jobs.crun(), "--standalone", "--nproc-per-node=4", *options, "--no-python", "sh", "-c", script],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}) as one:
        jobs.wait_for(lambda: len(jobs.workers(one.pid)) == 4, 60)
        os.kill(one.pid, signal.SIGSTOP)
        (tmp_path / "go").touch()
        jobs.wait_for(lambda: all((tmp_path / f"wrote{rank}").exists() for rank in range(4)), 60)
        os.kill(one.pid, signal.SIGCONT)
        one_out, one_err = one.communicate(timeout=60)
    files = test_crun_output.logs(tmp_path / "logs")
    front = Front("--nproc-per-node=2", *options, ranks=ranks)
    front.p.send_signal(signal.SIGSTOP)
    for rank in range(4):
        for which, name in ((STDOUT, "stdout"), (STDERR, "stderr")):
            front.write(front.open(rank // 2, rank, rank % 2, which), files[f"attempt_0/{rank}/{name}.log"].encode())
    front.p.send_signal(signal.SIGCONT)
    out, err = front.end()
    assert len(one_out.splitlines()) == 4 + 4 + 1 + 1 and one_err == "[ranks 0-3] same\n"
    assert (out, err) == (one_out, one_err)


def test_many_streams_cost_little():
    """1,000 hosts; only those that print have a stream."""
    front = Front("--nproc-per-node=8", hosts=[f"n{i}" for i in range(1000)], ranks=8000)
    for host in range(1000):
        stream = front.open(host, 8 * host)
        front.write(stream, b"%d\n" % host)
        front.send(host, RESULT, 0, bytes(8))
    out, err = front.end()
    assert sorted(map(int, out.split())) == list(range(1000))
