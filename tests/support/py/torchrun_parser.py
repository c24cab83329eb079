"""Command lines that torchrun reads, up to the moment of its launch, and that crun runs: torchrun in this process,
with a launch that only notes down what it was asked for; crun for real, with workers that write down their arguments.

The table is made from torchrun's own parser: every option in every spelling, with its value behind "=" and in the next
word, and by its PET_ variable; below come hand-written lines, good and bad.
"""

import contextlib
import io
import os
import re
import shlex
import string
import subprocess
import tempfile

import jobs
import launcher_compare
from launcher_compare import Difference
from launcher_pair import Row

# Stands for Python in workers: notes down its own arguments and environment.
FAKE_PYTHON = """#!/bin/sh
cat /proc/$$/cmdline > "$PROBE_DIR/$RANK.command"
env -0 > "$PROBE_DIR/$RANK.environment"
"""

VALUES = {
    "nnodes": "1", "nproc_per_node": "2", "rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "rdzv_id": "an-id",
    "rdzv_conf": "timeout=3", "max_restarts": "2", "monitor_interval": "0.2", "start_method": "fork",
    "event_log_handler": "null", "role": "r", "log_dir": "logs", "redirects": "1", "tee": "2", "local_ranks_filter": "0",
    "duplicate_stdout_filters": "a,b", "duplicate_stderr_filters": "c", "node_rank": "0", "master_addr": "localhost",
    "master_port": "0", "local_addr": "127.0.0.1", "logs_specs": "nope", "signals_to_handle": "SIGTERM,SIGINT",
    "shutdown_timeout": "5", "standalone": None, "module": None, "no_python": None, "run_path": None,
    "virtual_local_rank": None, "log_line_prefix_template": "${rank} ",
}
# --numa-binding depends on the machine's GPUs and has a comparison of its own (test_numa_vs_torch.py); --help is an
# output, not a launch, and so is --print-completion.
LEFT_OUT = {"numa_binding", "help", "print_completion"}
NEWER = {"--log-line-prefix-template", "--log_line_prefix_template"}  # than 2.13; crun has them whatever its peer is
PROGRAM = "probe.py"

HAND_WRITTEN = """
--nproc-per-node 2 --max-restarts 3 probe.py --lr 0.1
--nproc_per_node=2 --nproc_per_node=3 probe.py
--nnodes=1 --nnodes=1:1 probe.py
--standal probe.py
--nproc-per 2 probe.py
--nproc_p=2 probe.py
--max-r 1 probe.py
--monitor 0.5 probe.py
--rdzv-i=x probe.py
--virt probe.py
--red 1 probe.py
--te 3 probe.py
--nproc 2 probe.py
--nproc=2 probe.py
--rdzv x probe.py
--n 1 probe.py
--m probe.py
--log logs probe.py
--master-p 0 probe.py
--nope probe.py
--nope=3 --max-restarts 1 probe.py
-x probe.py
-z3 probe.py
--standalone=1 probe.py
-m=1 probe
-m probe
-mt3 probe
-mt 3 probe
-mr1 probe
-mr=1 probe
-t3 probe.py
-t=3 probe.py
-t 3 -r 1 probe.py
-r0:1,1:2 probe.py
-r 0:1,1:2 -t 1:3 probe.py
-tr probe.py
-t4 probe.py
-r a probe.py
-r 1:4 probe.py
-r '' probe.py
-r 0:1, probe.py
-r ,0:1 probe.py
--max-restarts=x probe.py
--max-restarts= probe.py
--max-restarts=1.5 probe.py
--max-restarts=1_0 probe.py
'--max-restarts= 7 ' probe.py
--max-restarts=+2 probe.py
--max-restarts -1 probe.py
--max-restarts=-1 probe.py
--max-restarts
--max-restarts probe.py
--monitor-interval=x probe.py
--monitor-interval=1e-1 probe.py
--monitor-interval=.5 probe.py
--master-port=x probe.py
--master-port= probe.py
--node-rank=x probe.py
--shutdown-timeout=x probe.py
--shutdown-timeout=1.5 probe.py
--start-method=nope probe.py
--start-method= probe.py
--start-method probe.py
--numa-binding=nope probe.py
--numa-binding= probe.py
--role -x probe.py
--role=-x probe.py
--role -5 probe.py
--role -- probe.py
--role= probe.py
--role '' probe.py
--role 'a b' probe.py
--role '-a b' probe.py
--rdzv-id -x probe.py
--rdzv-id=-x --standalone probe.py
--nnodes=0 probe.py
--nnodes=x probe.py
--nnodes= probe.py
--nnodes=1:0 probe.py
--nnodes=1:x probe.py
--nnodes=1:1:1 probe.py
--nnodes=: probe.py
'--nnodes= 1 ' probe.py
--nproc-per-node=x probe.py
--nproc-per-node= probe.py
--nproc-per-node=CPU probe.py
--nproc-per-node=xpu probe.py
--nproc-per-node=1.5 probe.py
--nproc-per-node=cpu probe.py
'--nproc-per-node= 2' probe.py
--rdzv-conf=a=b,c=d probe.py
--rdzv-conf=timeout=1,timeout=2 probe.py
--rdzv-conf=timeout probe.py
--rdzv-conf==1 probe.py
--rdzv-conf=, probe.py
--rdzv-conf=timeout=1, probe.py
'--rdzv-conf= timeout = 1 , is_host = 1 ' probe.py
--rdzv-conf= probe.py
--local-ranks-filter=x probe.py
--local-ranks-filter=0,1 probe.py
--local-ranks-filter=0, probe.py
'--local-ranks-filter=0, 1' probe.py
--local-ranks-filter=-1 probe.py
--duplicate-stdout-filters=a,,b,c probe.py
--duplicate-stdout-filters= probe.py
--no-python --module probe
--run-path --no-python -m probe.py
--no-python ./program a b
probe.py --nnodes=9 -m -t 3 --unknown -x
probe.py -- a
probe.py a -- b
-- probe.py a
-- -m a
--standalone -- probe.py -- a
-- -- probe.py
probe.py --
probe.py -h
probe.py --help --standalone
probe.py '' 'a b' "it's"
probe.py '$local_rank' '${local_rank}' '$$' '$$$local_rank' '${local_rank}x' '$local_rankx' '$LOCAL_RANK' '$' '$1' '${' '${}' '$$$'
--nproc-per-node=2 probe.py '$local_rank' 'a=$local_rank,${local_rank}'
--standalone
--no-python
-m
''
--
-
- a
a b
-5 x
-5.5 x
--standalone ''
"""


DIFFERS = {"''": ("Missing program",), "--standalone ''": ("Missing program",), "--run-path --no-python -m probe.py": ("Run path",)}


def lines_by_hand():
    for line in HAND_WRITTEN.strip().splitlines():
        yield Row(line, shlex.split(line), differs=DIFFERS.get(line, ()), parser_only=True)


def lines_by_option(actions):
    """Every option in every spelling and both ways to give a value; then by its variable."""
    for action in actions:
        if not action.option_strings or action.dest in LEFT_OUT:
            continue
        value = VALUES[action.dest]
        program = ["probe"] if action.dest == "module" else ["./program"] if action.dest == "no_python" else [PROGRAM]
        differs = ("Run path",) if action.dest == "run_path" else ()
        for spelling in action.option_strings:
            if value is None:
                yield Row(spelling, [spelling, *program, "x"], differs=differs, parser_only=True)
                continue
            yield Row(f"{spelling} VALUE", [spelling, value, *program, "x"], parser_only=True)
            if spelling.startswith("--"):
                yield Row(f"{spelling}=VALUE", [f"{spelling}={value}", *program, "x"], parser_only=True)
        variable = f"PET_{action.dest.upper()}"
        yield Row(variable, [*program, "x"], env={variable: "1" if value is None else value}, differs=differs,
                  parser_only=True)


def rows(run_module):
    actions = run_module.get_args_parser()._actions
    unknown = {action.dest for action in actions if action.option_strings} - set(VALUES) - LEFT_OUT
    assert not unknown, f"options of torchrun that this table does not know: {unknown}"
    return [*lines_by_option(actions), *lines_by_hand()]


# ---------------------------------------------------------------- asking both

def fill(folder, row):
    for name in ("python", "program"):
        path = os.path.join(folder, name)
        with open(path, "w") as f:
            f.write(FAKE_PYTHON)
        os.chmod(path, 0o755)
    for name in (PROGRAM, "a"):
        open(os.path.join(folder, name), "w").close()
    return {"PATH": os.environ["PATH"], "TMPDIR": folder, "PROBE_DIR": folder, "PYTHON_EXEC": f"{folder}/python",
            "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **row.env}


def substitute(word, local_rank):
    return string.Template(word).safe_substitute(local_rank=str(local_rank))


@contextlib.contextmanager
def pretended(environment, folder):
    before, here, tmp = dict(os.environ), os.getcwd(), tempfile.tempdir
    os.environ.clear(), os.environ.update(environment), os.chdir(folder)
    tempfile.tempdir = folder
    try:
        yield
    finally:
        os.environ.clear(), os.environ.update(before), os.chdir(here)
        tempfile.tempdir = tmp


def ask_torchrun(run_module, row, folder):
    """{"code", "error", "workers": [{"command", variables...}]}"""
    asked, err = {}, io.StringIO()

    def launch(config, entrypoint):
        def note(*words):
            n = config.nproc_per_node
            virtual = config.virtual_local_rank
            asked["workers"] = [{"command": [entrypoint if isinstance(entrypoint, str) else "run path",
                                             *(substitute(word, i) for word in words)],
                                 "ROLE_NAME": config.role, "TORCHELASTIC_MAX_RESTARTS": str(config.max_restarts),
                                 "TORCHELASTIC_RUN_ID": launcher_compare.plain(config.run_id) or "<uuid>",
                                 "TORCHELASTIC_SIGNALS_TO_HANDLE": config.signals_to_handle,
                                 "LOCAL_RANK": "0" if virtual else str(i), "LOCAL_WORLD_SIZE": str(n)} for i in range(n)]
        return note

    real = run_module.elastic_launch
    run_module.elastic_launch = launch
    code = 0
    try:
        with pretended(fill(folder, row), folder), contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
            run_module.run(run_module.parse_args(row.words))
    except SystemExit as stop:
        code = stop.code
    except Exception as error:
        code = 1
    finally:
        run_module.elastic_launch = real
    return {"code": code, "error": err.getvalue().rpartition("error: ")[2].strip(), "workers": asked.get("workers", [])}


def read_worker(folder, rank):
    with open(f"{folder}/{rank}.command", "rb") as f:
        command = f.read().decode().split("\0")[1:-1]  # without the shell
    with open(f"{folder}/{rank}.environment", "rb") as f:
        env = dict(entry.split("=", 1) for entry in f.read().decode().split("\0") if "=" in entry)
    names = ("ROLE_NAME", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_SIGNALS_TO_HANDLE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return {"command": command, "TORCHELASTIC_RUN_ID": launcher_compare.plain(env["TORCHELASTIC_RUN_ID"]),
            **{name: env[name] for name in names}}


def ask_crun(row, folder):
    p = subprocess.run([jobs.crun(), *row.words], cwd=folder, env=fill(folder, row), stdin=subprocess.DEVNULL,
                       capture_output=True, text=True, timeout=60)
    n = len([name for name in os.listdir(folder) if name.endswith(".command")])
    return {"code": p.returncode, "error": p.stderr.rpartition("error: ")[2].strip() if p.returncode == 2 else p.stderr,
            "workers": [read_worker(folder, rank) for rank in range(n)]}


def same_sentence(theirs, ours):
    """argparse's way to list choices changes from version to version; crun adds what may have been meant."""
    if "could match" in theirs:
        a, b = (set(re.split(" could match |, ", sentence.removesuffix("; they are one option: write it out")))
                for sentence in (theirs, ours))
        return a <= b and b - a <= NEWER
    return ours.startswith(re.sub(r" \(choose from.*", "", theirs, flags=re.S))


def compare(run_module, row):
    with tempfile.TemporaryDirectory() as folder:
        theirs = ask_torchrun(run_module, row, folder)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(folder)) as other:
        os.rename(other, folder)  # the same name
        try:
            ours = ask_crun(row, folder)
        finally:
            os.rename(folder, other)
    found = []
    if theirs["code"] != ours["code"]:
        found.append(Difference("exit code", theirs["code"], (ours["code"], ours["error"])))
    elif theirs["code"] == 2 and not same_sentence(theirs["error"], ours["error"]):
        found.append(Difference("usage error", theirs["error"], ours["error"]))
    if len(theirs["workers"]) != len(ours["workers"]):
        found.append(Difference("workers", len(theirs["workers"]), (len(ours["workers"]), ours["error"])))
    for rank, (a, b) in enumerate(zip(theirs["workers"], ours["workers"])):
        found += launcher_compare.compare_maps(f"worker {rank}", a, b)
    return found
