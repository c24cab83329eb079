"""What workers print, through -r, -t and the filters: where it goes, and that nobody waits or loses a byte."""

import fcntl
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import subprocess
import threading
import time

import pytest

import jobs
import launches
import output_volume

pytestmark = pytest.mark.sanitize

SAY = 'echo out $RANK; echo err $RANK >&2'


def crun(*args, environment=None, **more):
    return jobs.run([jobs.crun(), "--standalone", *map(str, args)], timeout=60,
                    env={"OMP_NUM_THREADS": "1", **os.environ, **(environment or {})}, **more)


def logs(folder):
    """{"attempt_0/1/stdout.log": text}"""
    return {str(path.relative_to(folder)).split("/", 1)[1]: path.read_text()
            for path in pathlib.Path(folder).rglob("*.log")}


@pytest.mark.parametrize("option, files, out, err", [
    ("-r0", {}, {"out 0", "out 1"}, {"err 0", "err 1"}),
    ("-r1", {"0/stdout": "out 0\n", "1/stdout": "out 1\n"}, set(), {"err 0", "err 1"}),
    ("-r3", {"0/stdout": "out 0\n", "1/stdout": "out 1\n", "0/stderr": "err 0\n", "1/stderr": "err 1\n"}, set(), set()),
    ("-r1:2", {"1/stderr": "err 1\n"}, {"out 0", "out 1"}, {"err 0"}),
    ("-t3", {"0/stdout": "out 0\n", "1/stdout": "out 1\n", "0/stderr": "err 0\n", "1/stderr": "err 1\n"},
     {"[default0]:out 0", "[default1]:out 1"}, {"[default0]:err 0", "[default1]:err 1"}),
    ("-t0:1", {"0/stdout": "out 0\n"}, {"[default0]:out 0", "out 1"}, {"err 0", "err 1"}),
])
def test_where_it_goes(tmp_path, option, files, out, err):
    p = crun("--nproc-per-node=2", option, f"--log-dir={tmp_path}", "--no-python", "sh", "-c", SAY)
    assert p.returncode == 0
    assert set(p.stdout.splitlines()) == out and set(p.stderr.splitlines()) == err
    assert logs(tmp_path) == {f"attempt_0/{name}.log": text for name, text in files.items()}


def test_each_generation_keeps_its_logs(tmp_path):
    p = crun("-t1", "--max-restarts=1", f"--log-dir={tmp_path}", "--no-python", "sh", "-c",
             "echo try $TORCHELASTIC_RESTART_COUNT; exit $((1 - TORCHELASTIC_RESTART_COUNT))")
    assert p.returncode == 0 and p.stdout.splitlines() == ["[default0]:try 0", "[default0]:try 1"]
    assert logs(tmp_path) == {f"attempt_{n}/0/stdout.log": f"try {n}\n" for n in range(2)}


def test_prefix_template():
    p = crun("-t1", "--role=trainer", "--no-python", "echo", "x",
             environment={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${role_name}/${rank} "})
    assert p.stdout == "trainer/0 x\n"


def test_no_prefix_inside_a_line():
    p = crun("--nproc-per-node=2", "-t1", "--no-python", "sh", "-c",
             "for i in 1 2 3 4 5; do printf 'a '; sleep 0.01; done; echo; printf 'no end'")
    assert sorted(p.stdout.splitlines()) == sorted(f"[default{rank}]:{text}" for rank in range(2) for text in ("a a a a a ", "no end"))


def test_local_ranks_filter(tmp_path):
    p = crun("--nproc-per-node=3", "-t1", "--local-ranks-filter=1", f"--log-dir={tmp_path}", "--no-python", "sh", "-c", SAY)
    assert p.stdout == "[default1]:out 1\n" and p.stderr == "err 1\n"
    assert len(logs(tmp_path)) == 3


def test_duplicate_filters(tmp_path):
    p = crun("--nproc-per-node=2", "-t3", "--duplicate-stdout-filters=apple,pear", "--duplicate_stderr_filters=plum",
             f"--log-dir={tmp_path}", "--no-python", "sh", "-c", "echo an apple; echo a plum; echo plums >&2")
    assert p.returncode == 0
    found = logs(tmp_path)
    assert sorted(found["attempt_0/filtered_stdout.log"].splitlines()) == [f"[default{rank}]:an apple" for rank in range(2)]
    assert sorted(found["attempt_0/filtered_stderr.log"].splitlines()) == [f"[default{rank}]:plums" for rank in range(2)]


def test_without_log_files():
    p = crun("--log-dir=/dev/null", "-t1", "-r2", "--no-python", "sh", "-c", SAY)
    assert p.stdout == "[default0]:out 0\n" and p.stderr == "err 0\n"


OWN_FILES = """cd $(dirname $TORCHELASTIC_ERROR_FILE)
for name in attempt_0.0.error.json.own attempt_0.0.error.json attempt_0.1.error.json attempt_00.0.error.json attempt_0.x.json attempt_x.json; do
    echo >$name
done"""


def test_temporary_logs(tmp_path):
    """Kept where the user asked for files, with a line that names them when they hold the only copy of the output."""
    where = {"TMPDIR": str(tmp_path)}
    assert crun("--no-python", "sh", "-c", SAY, environment=where).returncode == 0
    assert os.listdir(tmp_path) == []
    assert crun("--no-python", "sh", "-c", "echo {} >$TORCHELASTIC_ERROR_FILE", environment=where).returncode == 0
    assert os.listdir(tmp_path) == []  # with what is known to come from crun and its workers, and nothing else
    assert crun("--no-python", "sh", "-c", OWN_FILES, environment=where).returncode == 0
    assert sorted(path.name for path in tmp_path.glob("*/*")) == ["attempt_0.0.error.json.own", "attempt_0.1.error.json", "attempt_0.x.json",
                                                                  "attempt_00.0.error.json", "attempt_x.json"]
    shutil.rmtree(next(tmp_path.iterdir()))
    p = crun("-r3", "--no-python", "sh", "-c", SAY, environment=where)
    assert p.returncode == 0 and f"crun: the workers' output is in {tmp_path}/torchelastic_" in p.stderr
    assert logs(next(tmp_path.iterdir())) == {"attempt_0/0/stdout.log": "out 0\n", "attempt_0/0/stderr.log": "err 0\n"}
    shutil.rmtree(next(tmp_path.iterdir()))
    p = crun("-t1", "--no-python", "echo", "x", environment=where)
    assert p.returncode == 0 and p.stderr == "" and logs(next(tmp_path.iterdir())) == {"attempt_0/0/stdout.log": "x\n"}
    p = crun("-r3", "--no-python", "sh", "-c", "echo the reason >&2; exit 1", environment=where)
    assert p.returncode == 1 and "crun:   | the reason\n" in p.stderr and f"kept in {tmp_path}" in p.stderr


@pytest.mark.parametrize("environment, folder", [({"TMPDIR": "/nowhere", "TEMP": "HERE"}, "HERE"), ({"TMPDIR": "", "TMP": "HERE"}, "HERE"),
                                                 ({"TMPDIR": "/nowhere", "TEMP": "/dev/null", "TMP": "/proc"}, "/tmp")])
def test_folder_for_temporary_files(tmp_path, environment, folder):
    """As Python looks for one: a TMPDIR that only the first node has does not stop the others."""
    p = crun("--no-python", "sh", "-c", "echo $TORCHELASTIC_ERROR_FILE",
             environment={name: value.replace("HERE", str(tmp_path)) for name, value in environment.items()})
    assert p.returncode == 0, p.stderr
    assert p.stdout.startswith(folder.replace("HERE", str(tmp_path)) + "/torchelastic_")


def test_relative_log_dir(tmp_path):
    """A worker that changes its working directory still finds its error file, and the report names whole paths."""
    error = '{"message": {"message": "boom", "extraInfo": {"py_callstack": "the traceback", "timestamp": "1"}}}'
    p = crun("--log-dir=logs", "-r2", "--no-python", "sh", "-c", f"cd /; echo '{error}' > $TORCHELASTIC_ERROR_FILE; exit 1",
             cwd=tmp_path)
    assert p.returncode == 1 and "traceback : the traceback" in p.stderr
    assert f"error_file: {tmp_path}/logs/" in p.stderr and f"are kept in {tmp_path}/logs/" in p.stderr


def test_report_comes_after_the_output():
    both = subprocess.run([jobs.crun(), "--standalone", "-t3", "--no-python", "sh", "-c", "seq 20000; echo last; exit 1"],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60).stdout
    assert both.index("[default0]:last\n") < both.index("crun: rank 0")
    assert both.splitlines()[:20000] == [f"[default0]:{i}" for i in range(1, 20001)]


def test_colours_on_a_terminal_only():
    for environment, coloured in (({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        here, there = pty.openpty()
        p = subprocess.Popen([jobs.crun(), "--standalone", "-t1", "--no-python", "echo", "x"], stdin=subprocess.DEVNULL,
                             stdout=there, stderr=subprocess.DEVNULL,
                             env={**{k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM")}, **environment})
        assert p.wait(timeout=60) == 0
        shown = b""
        while not shown.endswith(b"\n"):
            assert select.select([here], [], [], 60)[0], shown
            shown += os.read(here, 1000)
        os.close(here), os.close(there)
        assert shown == (b"\033[36m[default0]:\033[0mx\r\n" if coloured else b"[default0]:x\r\n")


@pytest.mark.parametrize("term, clears", [("xterm", b"\r\033[K"), ("dumb", b"")])
def test_line_of_crun_replaces_a_progress_bar(term, clears):
    """The workers write to the terminal themselves, and the bar has no end of line."""
    here, there = pty.openpty()
    p = subprocess.Popen([jobs.crun(), "--standalone", "--no-python", "sh", "-c", "printf '10 %%' >&2; exit 3"],
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=there, env={**os.environ, "TERM": term})
    shown = b""
    while b"failed first" not in shown:
        assert select.select([here], [], [], 60)[0], shown
        shown += os.read(here, 1000)
    assert p.wait(timeout=60) == 1
    os.close(here), os.close(there)
    assert shown.startswith(b"10 %" + clears + b"crun: rank 0"), shown


# ---------------------------------------------------------------- slow readers, full disks


def test_lines_of_crun_have_the_time():
    """From the start of the job on, and not inside torchrun's table; --timestamps=no leaves it out."""
    for value, stamp in (("yes", r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "), ("no", "")):
        p = crun("--restart-policy=replace", "--max-restarts=1", "--restart-pause=0", "--no-python", "false",
                 environment={"PET_TIMESTAMPS": value})
        lines = p.stderr.splitlines()
        assert re.fullmatch(rf"crun: {stamp}rank 0 \(local rank 0, pid \d+\) failed first, .*", lines[0]), p.stderr
        assert all(re.match(f"crun: {stamp}[a-z0-9]", line) for line in lines if line.startswith("crun:")), p.stderr
        assert "false FAILED" in lines and "  rank      : 0 (local_rank: 0)" in lines
    p = crun("--timestamps=maybe", "--no-python", "true")
    assert p.returncode == 2 and "choose from: yes no" in p.stderr


def test_much_output():
    seen = output_volume.run(int(os.environ.get("CRUN_TEST_OUTPUT_BYTES", 50 << 20)))
    if jobs.is_sanitized():
        seen["peak memory KiB"] = 0
    assert output_volume.is_fine(seen), seen


def test_slow_console_holds_nobody_up(tmp_path):
    """Nobody reads crun's stdout, and still the worker writes 20 MB and ends; then all of it is there."""
    chatter = str(jobs.build_folder() / "tests" / "workers" / "chatter")
    p = launches.start(["--standalone", "-t1", f"--log-dir={tmp_path}", "--no-python", "sh", "-c",
                        f"{chatter} 20000000 && touch {tmp_path}/written; sleep 0.2"], stdout=subprocess.PIPE)
    jobs.wait_for((tmp_path / "written").exists)
    if not jobs.is_sanitized():
        assert output_volume.peak_memory_kib(p.pid) < output_volume.MEMORY_LIMIT_KIB
    time.sleep(1.5)  # crun has given up waiting for the console, and still is there for it
    assert p.poll() is None
    lines, wrong, _ = output_volume.read_lines(p, 1)
    assert p.wait(timeout=60) == 0 and wrong == [] and lines[0] > 100000


def test_signal_ends_the_wait_for_a_console_that_stands_still(tmp_path):
    p = launches.start(["--standalone", "-t1", f"--log-dir={tmp_path}", "--no-python", "sh", "-c", "seq 200000"],
                       stdout=subprocess.PIPE)
    everything_written = lambda: any(log.read_text().endswith("\n200000\n") for log in tmp_path.rglob("stdout.log"))
    jobs.wait_for(lambda: everything_written() and not jobs.children(p.pid))
    p.terminate()
    p.wait(timeout=60)
    assert next(tmp_path.rglob("stdout.log")).read_text().count("\n") == 200000


def test_slow_console_holds_neither_signals_nor_restarts_up(tmp_path):
    """2 MB for a reader of 20 KB a second, which takes 100 s: the next generation starts before, SIGTERM ends everything."""
    worker = f"date +%s.%N >> {tmp_path}/starts; seq 300000; [ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 1; sleep 60"
    p = launches.start(["--standalone", "-t1", "--max-restarts=1", f"--log-dir={tmp_path}/logs", "--no-python", "sh", "-c", worker],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def read_slowly():
        while os.read(p.stdout.fileno(), 4096):
            time.sleep(0.2)

    reader = threading.Thread(target=read_slowly, daemon=True)
    reader.start()
    starts = lambda: (tmp_path / "starts").exists() and (tmp_path / "starts").read_text().split()
    jobs.wait_for(lambda: (s := starts()) and len(s) == 2)
    time.sleep(0.5)
    first, second = map(float, starts())
    assert second - first < 50
    begin = time.monotonic()
    p.terminate()
    err = p.stderr.read().decode()
    assert p.wait(timeout=60) == 1 and time.monotonic() - begin < 50
    assert "failed first" in err and "crun: stopped by SIGTERM" in err
    reader.join(timeout=60)


def test_sentences_keep_their_place_on_a_slow_console():
    """The report on a generation comes behind all it wrote and before all that the next one writes."""
    command = "seq 30000; echo end of $TORCHELASTIC_RESTART_COUNT; exit 1"
    p = subprocess.Popen([jobs.crun(), "--standalone", "-t3", "--max-restarts=1", "--no-python", "sh", "-c", command],
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    time.sleep(1.5)
    lines = p.stdout.read().decode().splitlines()
    assert p.wait(timeout=60) == 1
    places = [lines.index("[default0]:end of 0"), next(i for i, line in enumerate(lines) if "will restart" in line),
              lines.index("[default0]:end of 1")]
    assert places[0] == 30000 and lines[places[1] + 1] == "[default0]:1" and lines[places[2] + 1].startswith("crun: rank 0")


def test_console_whose_reader_is_gone(tmp_path):
    command = f"{jobs.crun()} --standalone -t1 --log-dir={tmp_path} --no-python sh -c 'seq 100000'"
    p = subprocess.run(["bash", "-c", f"set -o pipefail; {command} | head -1"], capture_output=True, text=True, timeout=60)
    assert p.stdout == "[default0]:1\n" and p.returncode == 0
    assert next(tmp_path.rglob("stdout.log")).read_text().count("\n") == 100000


# ---------------------------------------------------------------- disks


@pytest.mark.parametrize("option", ["-r1", "-t1"])
def test_worker_writes_its_log_itself(tmp_path, option):
    """A crun that cannot run (here: is stopped) holds no worker up, however much that writes."""
    chatter = str(jobs.build_folder() / "tests" / "workers" / "chatter")
    p = launches.start(["--standalone", option, f"--log-dir={tmp_path}/logs", "--no-python", "sh", "-c",
                        f"touch {tmp_path}/started; while ! [ -e {tmp_path}/go ]; do sleep 0.05; done; "
                        f"{chatter} 3000000; touch {tmp_path}/written"], stdout=subprocess.PIPE)
    jobs.wait_for((tmp_path / "started").exists)
    p.send_signal(signal.SIGSTOP)
    (tmp_path / "go").touch()
    jobs.wait_for((tmp_path / "written").exists)
    p.send_signal(signal.SIGCONT)
    lines = p.stdout.read().count(b"\n")
    assert p.wait(timeout=60) == 0
    log = next(tmp_path.rglob("stdout.log")).read_bytes()
    assert len(log) >= 3000000 and lines == (log.count(b"\n") if option == "-t1" else 0)


@pytest.mark.parametrize("option", ["-t1", "-r1"])
def test_disk_that_hangs(tmp_path, option):
    """While the disk of the log files hangs, crun obeys a signal: SIGTERM reaches the worker, and crun ends."""
    logs_folder = tmp_path / "logs"
    worker = f"trap 'touch {tmp_path}/asked; exit 0' TERM; echo begin; touch {tmp_path}/begun; while :; do sleep 0.1; echo x; done"
    p = subprocess.Popen([jobs.crun(), "--standalone", option, f"--log-dir={logs_folder}", "--no-python",
                          "env", "-u", "LD_PRELOAD", "sh", "-c", worker], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True,
                         env={**os.environ, **hanging_disk(tmp_path, logs_folder)})
    jobs.wait_for((tmp_path / "begun").exists)
    (tmp_path / "hangs").touch()
    time.sleep(0.5)
    p.terminate()
    jobs.wait_for((tmp_path / "asked").exists, 10)
    out, err = p.communicate(timeout=20)
    assert p.returncode == 1 and "crun: stopped by SIGTERM" in err


def hanging_disk(tmp_path, folder):
    """The environment of a crun for which everything on files below folder hangs while tmp_path/hangs exists."""
    return jobs.preload("slow_disk", SLOW_DISK=folder, SLOW_DISK_HANGS=tmp_path / "hangs")


def test_signal_while_a_disk_holds_up_a_restart(tmp_path):
    """The folders and log files of the next attempt cannot be made, nor the error file of this one be read."""
    p = launches.start(["--standalone", "-t1", "--max-restarts=1", f"--log-dir={tmp_path}/logs", "--no-python", "env", "-u",
                        "LD_PRELOAD", "sh", "-c", f"touch {tmp_path}/hangs; exit 3"],
                       hanging_disk(tmp_path, tmp_path / "logs"), stderr=subprocess.PIPE, text=True)
    jobs.wait_for((tmp_path / "hangs").exists)
    time.sleep(1)
    assert p.poll() is None
    begin = time.monotonic()
    p.terminate()
    _, err = p.communicate(timeout=60)
    # Each thread that uses the disk is waited for up to two seconds, and the machine may be busy with something else.
    assert p.returncode == 1 and "stopped by SIGTERM" in err and time.monotonic() - begin < 30
    assert launches.wait_until_gone(p.tag, 10) == {}


@pytest.mark.parametrize("option", ["--event-log", "--debug"])
def test_file_of_lines_on_a_disk_that_hangs(tmp_path, option):
    """It is opened and written by a thread: the job runs meanwhile, and ends two seconds after its last worker."""
    (tmp_path / "hangs").touch()
    begin = time.monotonic()
    p = launches.start(["--standalone", f"{option}={tmp_path}/lines/x", "--no-python", "env", "-u", "LD_PRELOAD", "sh", "-c",
                        f"touch {tmp_path}/up"], hanging_disk(tmp_path, tmp_path / "lines"), stderr=subprocess.PIPE, text=True)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 0 and (tmp_path / "up").exists() and "takes nothing; lines are dropped" in err, err
    assert time.monotonic() - begin < 30


def test_disk_that_hangs_while_a_file_of_lines_is_opened(tmp_path):
    """What is known late is reported when it is known."""
    (tmp_path / "hangs").touch()
    p = launches.start(["--standalone", f"--event-log={tmp_path}/lines/x", "--no-python", "env", "-u", "LD_PRELOAD", "sh", "-c",
                        f"rm {tmp_path}/hangs"], hanging_disk(tmp_path, tmp_path / "lines"), stderr=subprocess.PIPE, text=True)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 0 and f"cannot open the event log {tmp_path}/lines/x: No such file or directory" in err, err


@pytest.mark.parametrize("answers_s", [0, 0.3], ids=["at-the-end", "after-the-end"])
def test_console_on_a_disk_that_hangs_at_the_start(tmp_path, monkeypatch, answers_s):
    """The first line of crun, that OMP_NUM_THREADS is not set, waits for the disk; the workers do not."""
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "hangs").touch()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with open(disk / "err", "w", encoding="utf-8") as err:
        p = launches.start(["--standalone", "--nproc-per-node=2", "--no-python", "env", "-u", "LD_PRELOAD", "sh", "-c",
                            f"touch {tmp_path}/up; until [ -e {tmp_path}/go ]; do sleep 0.05; done"],
                           hanging_disk(tmp_path, disk), stderr=err)
    jobs.wait_for((tmp_path / "up").exists, 10)
    assert (disk / "err").read_text() == ""
    (tmp_path / "go").touch()
    time.sleep(answers_s)
    (tmp_path / "hangs").unlink()
    assert p.wait(timeout=60) == 0
    assert (disk / "err").read_text().count("OMP_NUM_THREADS is not set") == 1


@pytest.mark.parametrize("what", ["program", "secret"])
def test_signal_while_the_disk_of_what_is_looked_up_hangs(tmp_path, what):
    """crun cannot start without it. It waits, says so, and obeys a signal."""
    disk = tmp_path / "disk"
    disk.mkdir()
    (disk / "run").write_text("#!/bin/sh\nexit 0\n")
    (disk / "run").chmod(0o755)
    (tmp_path / "hangs").touch()
    words = [str(disk / "run")] if what == "program" else ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:1",
                                                            f"--secret-file={disk}/secret", "--no-python", "true"]
    p = launches.start(words, hanging_disk(tmp_path, disk), stderr=subprocess.PIPE, text=True)
    time.sleep(1)
    assert p.poll() is None
    begin = time.monotonic()
    p.terminate()
    _, err = p.communicate(timeout=60)
    assert p.returncode == 1 and "stopped by a signal before the disk of" in err and time.monotonic() - begin < 20, err


def test_outer_error_file_on_a_disk_that_hangs(tmp_path):
    """The copy for a launcher above is tried for a moment. What crun reports and how it ends is as ever."""
    (tmp_path / "hangs").touch()
    error = '{"message": {"message": "boom", "extraInfo": {"timestamp": "1"}}}'
    p = launches.start(["--standalone", "--no-python", "env", "-u", "LD_PRELOAD", "sh", "-c",
                        f"echo '{error}' >$TORCHELASTIC_ERROR_FILE; exit 3"],
                       {**hanging_disk(tmp_path, tmp_path / "outer"), "TORCHELASTIC_ERROR_FILE": str(tmp_path / "outer.json")},
                       stderr=subprocess.PIPE, text=True)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 1 and "boom" in err, err
    assert f"cannot write the error file {tmp_path}/outer.json: Connection timed out" in err, err


def test_names_with_control_characters(tmp_path):
    """A line of crun stays one line, and moves no cursor."""
    p = crun("--no-python", f"{tmp_path}/a\nb\033[2J")
    assert p.returncode == 1 and p.stderr == f"crun: {tmp_path}/a b?[2J: No such file or directory\n"


def test_disk_that_hangs_at_the_start_delays_it(tmp_path):
    (tmp_path / "hangs").touch()
    p = launches.start(["--standalone", "-t1", f"--log-dir={tmp_path}/logs", "--no-python", "env", "-u", "LD_PRELOAD", "echo", "x"],
                       hanging_disk(tmp_path, tmp_path / "logs"), stdout=subprocess.PIPE, text=True)
    time.sleep(1)
    assert p.poll() is None
    (tmp_path / "hangs").unlink()
    assert p.communicate(timeout=20)[0] == "[default0]:x\n" and p.returncode == 0


def test_temporary_folder_on_a_disk_that_hangs_at_the_end(tmp_path):
    p = launches.start(["--standalone", "--no-python", "env", "-u", "LD_PRELOAD", "sh", "-c",
                        f"touch {tmp_path}/up; while ! [ -e {tmp_path}/go ]; do sleep 0.02; done"],
                       {**hanging_disk(tmp_path, tmp_path), "TMPDIR": str(tmp_path)}, stderr=subprocess.PIPE, text=True)
    jobs.wait_for((tmp_path / "up").exists)
    (tmp_path / "hangs").touch()
    (tmp_path / "go").touch()
    _, err = p.communicate(timeout=20)
    assert p.returncode == 0 and "the disk of the log files does not answer" in err


def test_disks_of_three_nodes_that_stand_still():
    """The short form of `tests/soak standing-still`: longer than the node timeout, and no node is lost."""
    if jobs.is_sanitized():
        pytest.skip("a sanitizer has to be the first library that is loaded")
    p = jobs.run_soak("standing_still.py", "--seconds", "3", "--load", "0", "logs", "state", "resolver")
    assert p.returncode == 0, p.stdout + p.stderr


def test_log_that_is_truncated(tmp_path):
    """A log that is emptied to free its disk goes on, and so does the console."""
    log = tmp_path / "log"
    worker = (f"for i in 1 2 3; do echo before $i; done; while [ ! -e {log} ]; do sleep 0.05; done; "
              "for i in $(seq 40); do echo after $i; sleep 0.02; done")
    p = launches.start(["--standalone", "-t1", f"--log-dir={tmp_path}/logs", "--no-python", "sh", "-c", worker],
                       stdout=subprocess.PIPE, text=True)
    assert [p.stdout.readline() for _ in range(3)] == [f"[default0]:before {i}\n" for i in (1, 2, 3)]
    os.truncate(next(tmp_path.rglob("stdout.log")), 0)
    log.touch()
    lines = p.stdout.read().splitlines()
    assert p.wait(timeout=60) == 0 and lines == [f"[default0]:after {i}" for i in range(1, 41)]
    assert next(tmp_path.rglob("stdout.log")).read_bytes() == "".join(f"after {i}\n" for i in range(1, 41)).encode()


tmpfs_works = subprocess.run(["unshare", "-m", "true"], stderr=subprocess.DEVNULL).returncode == 0


@pytest.mark.skipif(not tmpfs_works, reason="no permission for a mount namespace")
@pytest.mark.parametrize("option", ["-t1", "-r1"])
def test_full_disk(tmp_path, option):
    """The log's disk is full after 1 MiB: the worker gets that error, as from torchrun; the console has all that was written."""
    chatter = str(jobs.build_folder() / "tests" / "workers" / "chatter")
    script = (f"mount -t tmpfs -o size=1m none {tmp_path} && exec {jobs.crun()} --standalone {option} --log-dir={tmp_path} "
              f"--no-python {chatter} 5000000")
    p = subprocess.Popen(["unshare", "-m", "sh", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
    out = p.stdout.read()
    err = p.stderr.read().decode()
    assert p.wait(timeout=60) == 1, err
    assert "chatter: No space left on device" in err and "failed first" in err and "exit code 9" in err
    if option == "-t1":
        assert out.count(b"\n") > 5000 and 900000 < len(out)


FULL = """mount -t tmpfs -o size=256k none HERE; cd HERE
(until [ -e full ]; do sleep 0.02; done; sleep SECONDS; rm filler; touch free) &
CRUN --standalone -t3 --log-dir=/dev/null --no-python sh -c 'echo before; until grep -q before out; do sleep 0.02; done; yes | head -c 1M >filler 2>/dev/null; seq 3000; sleep 0.3; touch full; AFTER' >OUT; echo $?
wait; cat out; cat err >&2"""


@pytest.mark.skipif(not tmpfs_works, reason="no permission for a mount namespace")
@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("seconds, after", [(0, "until [ -e free ]; do sleep 0.02; done; sleep 1.2; echo AFTER; exit 3"), (1.5, "exit 3")],
                         ids=["before", "behind"])
def test_console_on_a_full_disk(tmp_path, seconds, after, both):
    """The disk of crun's own output is full for a while: what was lost is counted, and crun's report arrives, also behind the end."""
    script = FULL
    for name, value in {"HERE": tmp_path, "CRUN": jobs.crun(), "SECONDS": seconds, "AFTER": after, "OUT": "out 2>&1" if both else "out 2>err"}.items():
        script = script.replace(name, str(value))
    p = jobs.run(["unshare", "-m", "sh", "-c", script], env={**os.environ, "OMP_NUM_THREADS": "1"})
    code, first, *lines = p.stdout.splitlines()
    assert (code, first) == ("1", "[default0]:before"), p.stdout[-2000:]
    text = p.stdout if both else p.stderr
    assert "exit code 3" in text and "sh FAILED" in text, text[-2000:]
    assert sum("bytes of output were lost: No space left on device" in line for line in lines) == 1, lines[-50:]
    assert ("[default0]:AFTER" in lines) == (seconds == 0)


FILTERED = """mount -t tmpfs -o size=256k none HERE; cd HERE
exec CRUN --standalone -t1 --log-dir=HERE --duplicate-stdout-filters=apple --no-python sh -c '
    echo apple 1; sleep 0.2; yes 2>/dev/null | head -c 1M >filler; yes apple | head -n 700; sleep 0.3; rm filler; echo apple 2; sleep 0.2; cat */attempt_0/filtered* >&2'"""


@pytest.mark.skipif(not tmpfs_works, reason="no permission for a mount namespace")
def test_filtered_lines_on_a_full_disk(tmp_path):
    """They go on where the disk has room again, and the loss is reported once."""
    p = jobs.run(["unshare", "-m", "sh", "-c", FILTERED.replace("HERE", str(tmp_path)).replace("CRUN", jobs.crun())])
    assert p.returncode == 0 and p.stderr.count("crun: cannot write the filtered stdout log: No space left on device") == 1, p.stderr
    assert "apple 2\n" in p.stderr, p.stderr[-500:]


# ---- folders that go away ----

# Removes what is there of the logs and fails; the next generation leaves a reason in its error file, where it has one.
CLEANED = r"""if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then rm -rf HERE/*; AFTER; exit 1; fi
echo "again $RANK"
echo '{"message": {"message": "boom", "extraInfo": {"py_callstack": "the traceback", "timestamp": "1"}}}' > ${TORCHELASTIC_ERROR_FILE:-/dev/null}
exit 3"""


def crun_cleaned(tmp_path, *options, after=":"):
    where = tmp_path / "where"
    where.mkdir()
    script = CLEANED.replace("HERE", str(where)).replace("AFTER", after)
    return where, crun("--max-restarts=1", *(option.replace("HERE", str(where)) for option in options), "--no-python", "sh", "-c", script,
                       environment={"TMPDIR": str(where)})


@pytest.mark.parametrize("options", [[], ["-r3"], ["-t3"], ["-t3", "--log-dir=HERE/logs"]])
def test_folder_that_was_cleaned_away_is_made_again(tmp_path, options):
    """As systemd-tmpfiles and prologs of batch systems do in /tmp. The reason of the second failure arrives, too."""
    where, p = crun_cleaned(tmp_path, *options)
    assert p.returncode == 1 and "exit code 3" in p.stderr, p.stderr
    assert "traceback : the traceback" in p.stderr, p.stderr
    if options:
        assert logs(next(where.iterdir()))["attempt_1/0/stdout.log"] == "again 0\n"
    else:
        assert p.stdout == "again 0\n"


def test_restart_without_a_place_for_logs(tmp_path):
    """A job is worth more than its log."""
    _, p = crun_cleaned(tmp_path, "-t3", "--log-dir=HERE/logs", after="touch HERE/logs".replace("HERE", str(tmp_path / "where")))
    assert p.returncode == 1 and "exit code 3" in p.stderr and p.stdout == "[default0]:again 0\n", p.stderr
    assert p.stderr.count("Not a directory; choose another place with --log-dir or TMPDIR; generation 1 runs without log") == 1


def test_cleaner_is_told_that_the_folder_is_in_use(tmp_path):
    """systemd-tmpfiles leaves folders with a lock alone (tmpfiles.d(5))."""
    p = subprocess.Popen([jobs.crun(), "--standalone", "--no-python", "sh", "-c", "echo up; read x"], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert p.stdout.readline() == "up\n"
    folder = os.open(next(tmp_path.iterdir()), os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(folder)
    p.communicate("x\n", timeout=60)
    assert p.returncode == 0 and list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not tmpfs_works, reason="no permission for a mount namespace")
@pytest.mark.parametrize("option, code", [("--max-restarts=0", 0), ("-r3", 1)])
def test_no_folder_for_temporary_files(option, code):
    """readOnlyRootFilesystem of a pod: only the text of a failure is lost, unless the user asked for files."""
    mounts = "".join(f"mount -t tmpfs -o ro none {folder}; " for folder in ("/tmp", "/var/tmp"))
    p = jobs.run(["unshare", "-m", "sh", "-c", f"{mounts}cd /proc; unset TMPDIR; exec {jobs.crun()} --standalone {option} --no-python echo up"])
    assert p.returncode == code and p.stdout == ("up\n" if code == 0 else ""), p.stderr
    jobs.assert_one_sentence(p, code, "cannot create the folders for error files under the folder for temporary files: Read-only",
                             "--log-dir")


# ---- --fold-output ----

def test_equal_lines_are_folded(tmp_path):
    """crun is stopped while they write, so that no scheduler makes the lines of one rank late."""
    script = (f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo same; echo own $RANK; test $RANK = 2 || echo most; echo same >&2; "
              f"echo end; echo > {tmp_path}/wrote$RANK; sleep 1")
    with subprocess.Popen([jobs.crun(), "--standalone", "--nproc-per-node=4", "-t3", "--fold-output", f"--log-dir={tmp_path / 'logs'}",
                           "--duplicate-stdout-filters=same", "--no-python", "sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}) as p:
        jobs.wait_for(lambda: len(jobs.workers(p.pid)) == 4, 60)
        os.kill(p.pid, signal.SIGSTOP)
        (tmp_path / "go").touch()
        jobs.wait_for(lambda: all((tmp_path / f"wrote{rank}").exists() for rank in range(4)), 60)
        os.kill(p.pid, signal.SIGCONT)
        out, err = p.communicate(timeout=60)
    assert p.returncode == 0, err
    lines = out.splitlines()
    assert sorted(lines) == sorted(["[ranks 0-3] same", "[ranks 0-1,3] most", "[ranks 0-3] end", *(f"[default{rank}]:own {rank}" for rank in range(4))])
    assert lines[0] == "[ranks 0-3] same" and lines[-1] == "[ranks 0-3] end"
    assert err.splitlines() == ["[ranks 0-3] same"]
    found = logs(tmp_path / "logs")
    assert all(f"own {rank}" in found[f"attempt_0/{rank}/stdout.log"] for rank in range(4))
    assert len(found["attempt_0/filtered_stdout.log"].splitlines()) == 4


def test_equal_lines_are_folded_by_a_late_reader(tmp_path):
    """The disk hangs for crun's reader after the line of rank 0, for longer than a line waits. Rank 2 prints its own meanwhile."""
    script = (f"while [ ! -e {tmp_path}/go$(( RANK / 2 )) ]; do sleep 0.05; done; echo same; echo > {tmp_path}/wrote$RANK; "
              f"while [ ! -e {tmp_path}/end ]; do sleep 0.05; done")
    slow = jobs.preload("slow_disk", SLOW_DISK="/attempt_0/1/", SLOW_DISK_HANGS=tmp_path / "hangs", SLOW_DISK_READS=1)
    with subprocess.Popen([jobs.crun(), "--standalone", "--nproc-per-node=3", "-t1", "--fold-output", f"--log-dir={tmp_path / 'logs'}",
                           "--no-python", "env", "-u", "LD_PRELOAD", "sh", "-c", script], stdout=subprocess.PIPE,
                          env={**os.environ, **slow, "OMP_NUM_THREADS": "1"}, text=True) as p:
        jobs.wait_for(lambda: len(jobs.workers(p.pid)) == 3, 60)
        (tmp_path / "hangs").touch()
        os.kill(p.pid, signal.SIGSTOP)
        (tmp_path / "go0").touch()
        jobs.wait_for(lambda: all((tmp_path / f"wrote{rank}").exists() for rank in range(2)), 60)
        os.kill(p.pid, signal.SIGCONT)
        time.sleep(0.5)
        (tmp_path / "go1").touch()
        jobs.wait_for((tmp_path / "wrote2").exists, 60)
        (tmp_path / "hangs").unlink()
        first = p.stdout.readline()
        (tmp_path / "end").touch()
        rest = p.stdout.read()
    assert (p.returncode, first, rest) == (0, "[ranks 0-2] same\n", "")


def test_a_line_of_one_rank_is_not_held_back(tmp_path):
    """It is shown while the worker runs, and before crun's report."""
    begin = time.monotonic()
    with subprocess.Popen([jobs.crun(), "--standalone", "--nproc-per-node=2", "-t1", "--fold-output", "--no-python", "sh", "-c",
                           "test $RANK = 1 && echo one; sleep 20"], stdout=subprocess.PIPE, text=True) as p:
        assert p.stdout.readline() == "[default1]:one\n"
        assert time.monotonic() - begin < 15
        p.terminate()
    p = crun("--nproc-per-node=2", "-t3", "--fold-output", "--no-python", "sh", "-c", "test $RANK = 0 || exec sleep 20; echo why >&2; sleep 0.05; exit 3")
    assert p.returncode == 1 and 0 <= p.stderr.find("why\n") < p.stderr.find("crun: "), p.stderr


def test_nothing_is_lost_between_generations():
    p = crun("--nproc-per-node=2", "-t1", "--fold-output", "--max-restarts=1", "--restart-pause=0", "--no-python", "sh", "-c",
             "echo try $TORCHELASTIC_RESTART_COUNT; test $TORCHELASTIC_RESTART_COUNT = 1 && exit; sleep 1; exit 1")
    assert p.returncode == 0, p.stderr
    for generation in range(2):
        shown = [line for line in p.stdout.splitlines() if line.endswith(f"try {generation}")]
        assert shown == [f"[ranks 0-1] try {generation}"] or sorted(shown) == [f"[default{rank}]:try {generation}" for rank in range(2)], p.stdout


def test_folding_needs_lines():
    jobs.assert_one_sentence(crun("--fold-output", "--no-python", "true"), 1, "add -t 3")
