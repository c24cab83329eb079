"""The parts of a call of tests/gpu/run: what each one runs, and what has to hold."""

import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import sys
import time

from gpu_report import find_tool, nccl_version, query, why_of

HERE = pathlib.Path(__file__).resolve().parent
KERNELS = ("loss", "norm", "products", "step")
DEVICE = os.environ.get("GPU_TEST_DEVICE", "cuda")  # of PyTorch
GATE_S = float(os.environ.get("GPU_TEST_GATE_S", "20"))
MEMORY_S, MEMORY_MIB = 2, 16
DIFFER = "the checksums of the parameters differ"


def last_object(output):
    return json.loads([line for line in output.splitlines() if line.startswith("{")][-1])


# ---- the gate

def begin_setup(r, compiles):
    """The card keeps a client from here on, so that the driver does not put it to sleep between two programs; its clocks, power and
    memory are in dmon.log. compiles: for the part wait. Compilers do not mind what else runs, but what is measured minds them."""
    smi = find_tool("nvidia-smi")
    if smi:
        r.start(["sh", "-c", 'exec "$0" dmon -s pucm -d 1 -o T >"$1"', smi, r.reports / "dmon.log"])
    if r.emulated or DEVICE != "cuda" or not compiles:
        return
    for precision in ("fp32", "tf32"):
        r.begin_background(f"compile {precision}", torch_speed(f"compile_us_{precision}", 5), compile_cache(r))


def part_gate(r):
    """Driver, plugin, capture, both graphs, a job. Without them nothing else is worth its seconds."""
    outcomes = r.together([("dropped steps", [program(r, "device_check"), "drop"], GATE_S, last_object),
                           ("toy", [r.folder / "train", "toy", "--backend", "cuda", "--epochs", "1"], GATE_S)])
    failed = [(name, o) for name, o in zip(("dropped steps", "toy"), outcomes) if not o.ok]
    if failed:
        name, outcome = failed[0]
        r.stopped = f"ended at the gate: {name}: {outcome.figures.get('why', 'no time')}"
        print("\n".join([r.stopped, *outcome.output.splitlines()[-15:]]), flush=True)


def program(r, name):
    return r.folder / name


# ---- correctness

def kernel(r, name, *args, timeout=40, environment=None, before=()):
    crcs = r.folder / f"crcs-{name}"
    more = {"KERNEL_CRCS": crcs} if crcs.exists() and not before else {}
    values = last_object if more else None
    return (" ".join(filter(None, [*map(lambda b: pathlib.Path(b).name, before[:1]), *before[2:3], f"kernel_{name}", *args])),
            [*before, program(r, f"gpu_kernel_{name}")], timeout, values, {**more, **(environment or {})})


def part_kernels(r):
    """Each kernel beside its twin on the CPU, and, where prepare has them, beside the bits of the emulation."""
    r.together([kernel(r, k) for k in KERNELS])


def part_curves(r):
    steps, more = ("10", {"TRAIN_CHECK_MODEL": "small"}) if r.emulated else ("30", {})
    r.run("train_check check", [program(r, "train_check"), "check", steps], 40, last_object, more)


def crun(r, n, *args, crun_args=()):
    return [r.folder / "crun", "--standalone", f"--nproc-per-node={n}", *crun_args, *args]


def train_spec(r, name, n, timeout, *args, crun_args=(), environment=None, processes=None, epochs="2"):
    """The arguments of Report.run() for a job of train on n ranks, and its metrics file."""
    metrics = r.work / re.sub("[^A-Za-z0-9]+", "-", f"{r.part} {name}").strip("-")
    metrics = metrics.with_suffix(".jsonl")
    metrics.unlink(missing_ok=True)
    command = [r.folder / "train", *train_program(r.folder, r.settings), "--epochs", epochs, "--batch-size", 64 // n, "--metrics", metrics,
               *args]
    keys = ("loss_all", "param_crc32c", "images_per_s")
    return (name, crun(r, processes or n, *command, crun_args=crun_args), timeout,
            lambda output: {k: epochs_of(metrics)[-1][k] for k in keys if k in epochs_of(metrics)[-1]}, environment), metrics


def train_program(folder, settings):
    """mnist on the images that are carried; on the emulation, for which that is too much, the classifier."""
    name = settings.get("program", "mnist")
    data = ["--data", folder / "data", "--limit", settings.get("limit", 10000)] if name == "mnist" else []
    return [name, *map(str, data)]


def epochs_of(metrics):
    return [m for m in map(json.loads, metrics.read_text().splitlines()) if "param_crc32c" in m]


def train(r, *args, **more):
    """A job; what its epochs measured, [] for one that failed, and (seconds, line) of what it printed."""
    spec, metrics = train_spec(r, *args, **more)
    outcome = r.run(*spec)
    return (epochs_of(metrics) if outcome.ok else []), outcome.lines


def compare_with_cpu(r, what, n, epochs):
    curve = r.settings.get("curves", {}).get(str(n))
    if not curve:
        r.skip(what, "prepare has computed no curve of the CPU")
    elif epochs:
        distance = max(abs(e["loss_all"] / loss - 1) for e, loss in zip(epochs, curve))
        r.hold(what, {f"{len(epochs)} epochs beside {len(curve)}": len(epochs) == len(curve), "the bound is 0.001": distance < 1e-3},
               relative_distance=distance)


def middle_step(r):
    return r.settings.get("steps", 300) // 3


def part_mnist(r):
    """The main job on images: killed and resumed, bit for bit, beside the undisturbed one; and the CPU's loss."""
    specs = [train_spec(r, "undisturbed", 1, 60, "--backend", "cuda", processes="gpu"),
             train_spec(r, "killed", 1, 60, "--backend", "cuda", "--snapshot-dir", r.work / "snapshots",
                        "--snapshot-every", max(1, middle_step(r) // 3), "--fault", f"rank=0,step={middle_step(r)},kind=kill", crun_args=("--max-restarts=1",), processes="gpu")]
    outcomes = r.together([spec for spec, _ in specs])
    epochs = [epochs_of(metrics) if o.ok else [] for o, (_, metrics) in zip(outcomes, specs)]
    if all(epochs):
        resumed = any("resumed from the snapshot of step" in line for _, line in outcomes[1].lines)
        same = epochs[0][-1]["param_crc32c"] == epochs[1][-1]["param_crc32c"]
        r.hold("killed and resumed: same bits", {"it has not resumed from a snapshot": resumed, DIFFER: same})
    compare_with_cpu(r, "loss as on the CPU", 1, epochs[0])


def sanitizer_of(r):
    tool = find_tool("compute-sanitizer")
    if not tool:
        r.skip("compute-sanitizer", "there is no compute-sanitizer on this machine")
    return tool


def under(tool, check):
    return (tool, "--tool", check, "--error-exitcode", "1")


def part_sanitizer(r):
    """All at once: the cores suffice, and only the result counts. Device memory is what memcheck sees best."""
    tool = sanitizer_of(r)
    if not tool:
        return
    memcheck, racecheck = under(tool, "memcheck"), under(tool, "racecheck")
    device = {"KERNEL_MEMORY": "device"}
    r.together([kernel(r, k, "in device memory", timeout=70, environment=device, before=memcheck) for k in KERNELS]
               + [kernel(r, k, timeout=70, before=memcheck) for k in KERNELS]
               + [kernel(r, k, timeout=70, environment=device, before=racecheck) for k in ("products", "norm")]
               + [("memcheck train_check", [*memcheck, program(r, "train_check"), "steps", "3"], 70)])


def part_synccheck(r):
    """Barriers, and memory that is read before it is written."""
    if tool := sanitizer_of(r):
        r.together([kernel(r, k, timeout=70, before=under(tool, "synccheck")) for k in KERNELS]
                   + [("initcheck train_check", [*under(tool, "initcheck"), program(r, "train_check"), "steps", "3"], 70)])


# ---- the launcher

def card_mib():
    rows = query("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits").splitlines()
    return sum(int(row) for row in rows if row.strip().isdigit())


def wait_for(condition, seconds):
    until = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < until:
        time.sleep(0.05)
    return value


def part_launcher(r):
    r.facts.join(20)
    n_cards = len([g for g in r.machine["gpus"] if isinstance(g, dict) and len(g) > 1])

    def counted(pattern):
        def values(output):
            n = int(re.search(pattern, output).group(1))
            return {"counted": n, "ok": n == n_cards}
        return values
    r.run("--nproc-per-node=gpu", crun(r, "gpu", "--no-python", "sh", "-c", "echo world $WORLD_SIZE"), 20, counted(r"world (\d+)"))
    r.run("--check-node", [r.folder / "crun", "--check-node"], 20, counted(r"(\d+) NVIDIA GPU"))
    job_that_is_killed(r)


def job_that_is_killed(r):
    before = card_mib()
    spec, _ = train_spec(r, "job", 1, 30, "--backend", "cuda", "--log-every", 20, processes="gpu", epochs="100000")
    job = r.start(spec[1])
    try:
        watch_job_that_is_killed(r, job, before)
    finally:  # the parts behind this one are alone on the card
        if job.process:
            job.end()
            r.log("job", job.output())


def watch_job_that_is_killed(r, job, before):
    def has_stepped():
        return any(line.startswith("step ") for _, line in job.lines())
    wait_for(lambda: has_stepped() or not job.is_running(), 20)
    if not has_stepped() or not job.is_running():
        r.add("a job for crunctl", False, time.monotonic() - job.began, why="it takes no step: " + why_of(job.output()))
        return

    def shown():
        output = query(r.folder / "crunctl", "top", "--json", "--once")
        nodes = [n for line in output.splitlines() if line.startswith("{") for n in json.loads(line).get("nodes", [])]
        return next((n["gpus"] for n in nodes if n.get("gpus")), None)
    gpus = wait_for(shown, 8)
    r.add("crunctl top --json shows the GPU", bool(gpus), 0, **({"gpus": gpus} if gpus else {"why": "no node has GPUs in it"}))
    during, killed = card_mib(), time.monotonic()
    os.kill(job.process.pid, signal.SIGKILL)
    free = wait_for(lambda: card_mib() <= before + MEMORY_MIB, 10)
    seconds = time.monotonic() - killed
    job.wait(5)
    r.hold("kill -9 of crun: the card's memory is free",
           {"the job took no memory of the card": during > before + MEMORY_MIB, "the memory is still in use after 10 s": free,
            f"the bound is {MEMORY_S} s": seconds <= MEMORY_S}, seconds, before_mib=before, during_mib=during)


# ---- alone on the card

def part_wait(r):
    if not r.in_background:
        r.skip("torch.compile's caches", "nothing is compiled in the background")
    r.end_background(60)


def part_memory(r):
    def values(output):
        v = last_object(output)
        fractions = [f for k, f in v.items() if k.startswith("fraction_")]
        return {**v, "ok": bool(fractions) and (r.emulated or min(fractions) >= 0.9)}
    r.run("optimizers", [program(r, "device_check"), "memory", *(["100000"] if r.emulated else [])], 40, values)


def part_ours(r):
    steps, more = ("20", {"TRAIN_CHECK_MODEL": "small"}) if r.emulated else ("2000", {})
    r.ours = {}
    r.run("train_check time", [program(r, "train_check"), "time", steps], 30,
          lambda o: r.ours.update(last_object(o)) or last_object(o), more)
    for precision in ("fp32", "tf32"):
        epochs, _ = train(r, f"train {precision}", 1, 20, "--backend", "cuda", "--precision", precision, epochs="20")
        speeds = [e["images_per_s"] for e in epochs if "images_per_s" in e]
        if speeds:
            r.add(f"median epoch {precision}", True, 0, images_per_s=statistics.median(speeds))


def torch_speed(what, *args):
    return [sys.executable, HERE / "torch_speed.py", "--device", DEVICE, "--only", what, *map(str, args)]


def compile_cache(r):
    """And few processes that compile: each of them imports PyTorch first."""
    return {"TORCHINDUCTOR_CACHE_DIR": r.work / "inductor", "TRITON_CACHE_DIR": r.work / "triton", "TORCHINDUCTOR_COMPILE_THREADS": 4}


def part_pytorch(r):
    """The MNIST step of PyTorch on the same card, one process for each configuration."""
    theirs = {}
    for mode in ("eager", "graph", "compile"):
        for precision in ("fp32", "tf32"):
            name = f"{mode}_us_{precision}"
            if DEVICE != "cuda" and (mode, precision) != ("eager", "fp32"):
                r.skip(name, "it needs a card")
            else:
                r.run(name, torch_speed(name, *([2] if DEVICE != "cuda" else [])), 45 if mode == "compile" else 30,
                      lambda o: theirs.update(last_object(o)) or last_object(o), compile_cache(r))
    for precision, ours in (("fp32", "step_us_exact"), ("tf32", "step_us_tf32")):
        ours = getattr(r, "ours", {}).get(ours)
        ratios = {k: theirs[f"{k}_us_{precision}"] / ours for k in ("eager", "graph", "compile")
                  if f"{k}_us_{precision}" in theirs and ours and not r.emulated}
        if ratios:  # both sides compute in the same precision; PyTorch's own default is tf32 in convolutions alone
            r.add(f"{precision}: PyTorch's time by ours (no bound)", True, 0, step_us=ours, **ratios)


def part_ncu(r):
    """The time of each node of the step's graphs."""
    tool = find_tool("ncu")
    if not tool:
        r.skip("ncu", "there is no ncu on this machine")
        return

    def values(output):
        rows = re.findall(r'^"\d+",.*?"(?:void )?([\w:]+)[(<].*"gpu__time_duration.sum","(\w+)","([\d.,]+)"', output, re.M)
        times = {}
        for name, unit, value in rows:
            times[name] = times.get(name, 0) + float(value.replace(",", "")) * {"ns": 1e-3, "us": 1, "ms": 1e3}.get(unit[:2], 1)
        return {"launches": len(rows), **dict(sorted(times.items(), key=lambda t: -t[1])[:6]), "ok": bool(rows)}
    r.run("ncu", [tool, "--clock-control", "none", "--graph-profiling", "node", "--metrics",
                  "gpu__time_duration.sum,launch__grid_size", "--csv", "--launch-count", "200", program(r, "train_check"), "steps", "6"],
          40, values)


def part_blas(r):
    """Products of linear layers: libcrw's own, cuBLASLt's and PyTorch's."""
    fake = {"CRW_CUBLASLT_LIBRARY": r.folder / "libfake-cublaslt.so"} if r.emulated else {}
    r.run("kernel_blas check", [program(r, "gpu_kernel_blas"), "check"], 30, last_object, fake)
    if r.emulated:
        r.skip("kernel_blas time", "it needs a card")
    else:
        r.run("kernel_blas time", [program(r, "gpu_kernel_blas"), "time"], 30, last_object)
    if DEVICE != "cuda":
        r.skip("PyTorch's products", "they need a card")
    else:
        r.run("PyTorch's products", [sys.executable, HERE / "torch_products.py"], 30, last_object)


# ---- several ranks on one card

ON_SHARED_CARD = ("--backend", "cuda", "--oversubscribe-gpu")


def has_nccl(r, library=None):
    version = nccl_version(library or r.environment.get("CRW_NCCL_LIBRARY", "libnccl.so.2"))
    if not isinstance(version, int):
        r.skip("ranks on one card", f"there is no NCCL: {version}")
    return isinstance(version, int)


def compare_ends(r, n, environment, more):
    times = {}
    for ranks in (1, n):
        outcome = r.run(f"toy on {ranks}", crun(r, ranks, r.folder / "train", "toy", *ON_SHARED_CARD, *more, "--epochs", 1), 40, None,
                        environment)
        epochs = [t for t, line in outcome.lines if line.startswith("epoch 1/1")]
        if outcome.ok and epochs:
            times[ranks] = time.monotonic() - epochs[0]
    if len(times) == 2:  # an abort that waits for a graph costs 2 s
        r.hold(f"the end of a job on {n} ranks", {"it takes 1.5 s more than that of 1 rank": times[n] - times[1] < 1.5}, end_1=times[1],
               end_n=times[n])


def kill_once(r, n, kind, step, expected, environment, more):
    """A rank is killed in front of a step or inside it: the same parameters at the end as without that, and one step lost."""
    name = f"{n} ranks {kind} step {step}"
    snapshots = r.work / re.sub(" ", "-", f"snapshots-{r.part}-{name}")
    epochs, lines = train(r, name, n, 40, *ON_SHARED_CARD, *more, "--log-every", 1, "--snapshot-dir", snapshots,
                          "--fault", f"rank={n - 1},step={step},kind={kind}", crun_args=("--max-restarts=1",), environment=environment)
    if not epochs:
        return
    killed = [t for t, line in lines if ", as --fault asks" in line]
    resumed = [t for t, line in lines if f"resumed from the snapshot of step {step - 1}" in line]
    again = [t for t, line in lines if killed and resumed and t > resumed[0] and re.match(r"step \d+  loss", line)]
    r.hold(f"{name}: same parameters as undisturbed", {DIFFER: epochs[-1]["param_crc32c"] == expected})
    r.hold(f"{name}: only the step in flight is lost", {f"it has not resumed from the snapshot of step {step - 1}": resumed,
                                                       "no step followed": again},
           **({"seconds_to_the_next_step": again[0] - killed[0]} if again else {}))


def nccl_ranks(r, n, environment=None):
    if has_nccl(r, (environment or {}).get("CRW_NCCL_LIBRARY")):
        ranks(r, n, environment)


def ranks(r, n, environment=None, more=()):
    compare_ends(r, n, environment, more)
    undisturbed, _ = train(r, f"{n} ranks undisturbed", n, 60, *ON_SHARED_CARD, *more, "--log-every", 1, environment=environment)
    compare_with_cpu(r, f"{n} ranks: loss as on the CPU", n, undisturbed)
    for i, kind in enumerate(("kill", "kill-early") if undisturbed else ()):
        kill_once(r, n, kind, 30 + i, undisturbed[-1]["param_crc32c"], environment, more)


def part_nccl_2(r):
    """NCCL before 2.30.3: each rank is a host of its own, with the transport of sockets."""
    nccl_ranks(r, 2)


def part_nccl_3(r):
    nccl_ranks(r, 3)


def part_reduce_host(r):
    """The ranks' gradients are summed by libcrw on the host, without NCCL."""
    ranks(r, 2, more=("--reduce=host",))


def part_multi_rank(r):
    """NCCL's own way for several ranks of a card, between processes of one host. The library was carried (prepare --nccl)."""
    own = r.folder / "libnccl.so.2"
    if not own.exists():
        r.skip("NCCL_MULTI_RANK_GPU_ENABLE", "no NCCL was carried; prepare --nccl takes 2.30.3 or later")
        return
    nccl_ranks(r, 2, {"CRW_NCCL_LIBRARY": own, "NCCL_MULTI_RANK_GPU_ENABLE": 1})


def part_host_memory(r):
    """NCCL takes host memory by cuMem calls, which need NUMA information that a small virtual machine may lack."""
    if has_nccl(r):
        r.run("toy on 2, NCCL_CUMEM_HOST_ENABLE=0", crun(r, 2, r.folder / "train", "toy", *ON_SHARED_CARD, "--epochs", 1), 60, None,
              {"NCCL_CUMEM_HOST_ENABLE": 0, "NCCL_DEBUG": "INFO"})


# ---- PyTorch under crun

def in_place_steps(logs):
    """(generation, monotonic) of the steps, the process numbers by rank, and the checksums at the end."""
    steps, pids, ends = [], {}, set()
    for path in logs.glob("*.*"):
        rank, pid = path.name.split(".")
        pids.setdefault(int(rank), []).append(int(pid))
        for line in map(json.loads, path.read_text().splitlines()):
            if line[0] == "done":
                steps.append((line[2], line[4]))
            elif line[0] == "end":
                ends.add(line[2])
    return steps, pids, ends


def torch_job(r, name, n, timeout, *args, crun_args=(), wrapper=(), n_processes=None):
    """A job of torch_in_place.py; the checksums at the end of its ranks, or None."""
    logs = r.work / re.sub("[^A-Za-z0-9]+", "-", f"{r.part} {name}")
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    script = r.folder / "in-place/tests/workers/torch_in_place.py"
    found = {}
    timeout *= 2 if r.emulated else 1  # two busy cores import PyTorch in ten seconds

    def values(_output):
        steps, pids, ends = in_place_steps(logs)
        found["ends"] = ends
        v = {"processes": sum(map(len, pids.values())), "ok": len(ends) == 1}
        v["ok"] = v["ok"] and v["processes"] == (n_processes or n)
        if "--kill" in args:
            v["s_without_a_step"] = min(t for g, t in steps if g) - max(t for g, t in steps if not g)
        return v
    command = ["--no-python", *wrapper, os.environ.get("PYTHON_EXEC", sys.executable)] if wrapper else []
    # A rank that NCCL keeps in a collective obeys no SIGTERM.
    job = crun(r, n, *command, script, logs, "--samples", 1000, "--epochs", 1, "--device", DEVICE, *args,
               crun_args=("--max-restarts=1", "--shutdown-timeout=5", *crun_args))
    outcome = r.run(name, job, timeout, values, {"XDG_CACHE_HOME": r.work / "cache"})
    return found["ends"] if outcome.ok else None


def part_ddp(r):
    """PyTorch's DistributedDataParallel: kill -9 to the next step, with a new process and with one that is forked (--warm)."""
    wrapper = (r.folder / "in-place/tests/workers/shared_gpu",)
    kill = ("--kill", "0:30")
    one = [torch_job(r, "1 rank undisturbed, --warm makes its list", 1, 45, crun_args=("--warm",)),
           torch_job(r, "1 rank killed, --warm", 1, 45, *kill, crun_args=("--warm",), n_processes=2),
           torch_job(r, "1 rank killed, cold", 1, 45, *kill, n_processes=2)]
    two = [torch_job(r, "2 ranks killed", 2, 45, "--kill", "1:30", wrapper=wrapper, n_processes=4),
           torch_job(r, "2 ranks undisturbed", 2, 30, wrapper=wrapper)]
    for n, sums in ((1, one), (2, two)):
        if all(sums):
            r.hold(f"{n} rank(s): the same parameters", {DIFFER: len(set().union(*sums)) == 1})


def part_reconfigure(r):
    """Ranks that stay in their processes while another one is replaced. Needs PyTorch 2.14 (torch.distributed._reconfigure)."""
    python = os.environ.get("PYTHON_EXEC", sys.executable)
    version = query(python, "-c", "import torch; print(torch.__version__)", timeout=40).splitlines()[-1:]
    numbers = re.match(r"(\d+)\.(\d+)", version[0]) if version else None
    if not numbers or tuple(map(int, numbers.groups())) < (2, 14):
        r.skip("PyTorch in place", f"PyTorch 2.14 or later is needed, and this is {version[0] if version else 'none'}")
        return
    sums = [torch_job(r, name, 2, 170, *kill, crun_args=("--restart-policy=replace", "--replace-timeout=120"), n_processes=2 + bool(kill))
            for name, kill in (("undisturbed", ()), ("rank 1 killed", ("--kill", "1:30")), ("rank 0 killed", ("--kill", "0:30")))]
    if all(sums):
        r.hold("the same parameters", {DIFFER: len(set().union(*sums)) == 1})


PARTS = {name[5:].replace("_", "-"): f for name, f in list(globals().items()) if name.startswith("part_")}

# Part, seconds without which it is not begun, and at most.
FIRST = (("kernels", 10, 40), ("curves", 15, 40), ("mnist", 15, 60), ("sanitizer", 25, 80), ("wait", 5, 60), ("launcher", 15, 50),
         ("memory", 10, 40), ("ours", 12, 40), ("pytorch", 15, 120), ("ncu", 15, 40), ("blas", 12, 50), ("nccl-2", 25, 90),
         ("ddp", 20, 200))
SECOND = (("nccl-2", 25, 90), ("reduce-host", 25, 90), ("multi-rank", 25, 90), ("nccl-3", 25, 90), ("synccheck", 20, 80),
          ("host-memory", 10, 60))
