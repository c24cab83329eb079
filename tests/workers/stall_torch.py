"""A gloo job in which one rank stalls: stall_torch.py KIND RANK STEP STEP_MS FOLDER PHASE [MOVER MOVE]. The twin of stall_job.c: the same kinds,
phases, movers and files in FOLDER (stalled, began.RANK, steps.RANK), but for the phase "leave", in which the other ranks end."""

import atexit
import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

KIND, CULPRIT, STEP, STEP_MS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
FOLDER, PHASE, RANK = pathlib.Path(sys.argv[5]), sys.argv[6], int(os.environ["RANK"])
STEPS_BEHIND, STEPS_MEASURED = 130 if STEP >= 100 else 3, 100


def beat_of_crun():
    """Publishes steps. Without beats samples have to do, so the job makes a hundred steps before its stall."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
    from crun_launch.worker import beat
    return beat


def move(how):
    with open(FOLDER / "moves", "wb") as f:
        while True:
            if how == "prints":
                print("moves", flush=True)
            else:
                os.pwrite(f.fileno(), bytes(100000), 0)
            time.sleep(0.5)


def may_go():
    return (FOLDER / "go").exists()


def sleep():
    while not may_go():
        time.sleep(0.4)


def compute():
    number = 0
    os.nice(10)  # leaves the processor to the other ranks
    while number % 10_000_000 or not may_go():
        number += 1


def read_slowly():
    with open(FOLDER / "data", "rb", buffering=0) as f:
        while not may_go():
            if len(f.read(50000)) < 50000:
                f.seek(0)
            time.sleep(0.05)


def read_fifo():
    with open(os.open(FOLDER / "fifo", os.O_RDWR), "rb", buffering=0) as f:
        f.read(1)


def fill_pipe():
    """Its reader waits."""
    reader = subprocess.Popen(["sh", "-c", 'while [ ! -e "$1" ]; do sleep 0.4; done; exec cat >/dev/null', "sh", FOLDER / "go"],
                              stdin=subprocess.PIPE)
    reader.stdin.write(bytes(1 << 20))
    reader.stdin.close()
    reader.wait()


def starve(act):
    import torch.utils.data

    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, i):
            if i == 4:
                act()
            return torch.ones(1)

    for _ in torch.utils.data.DataLoader(Slow(), num_workers=1, batch_size=2):
        pass


def write_frozen():
    with open(FOLDER / "disk/file", "r+b", buffering=0) as f:
        f.write(bytes(4096))


def import_slowly():
    spec = importlib.util.spec_from_file_location("slow_module", FOLDER / "slow/slow_module.py")
    try:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    except (OSError, ImportError, SyntaxError, EOFError):
        pass  # the file system has ended


def wait_for_key():
    from torch.distributed import distributed_c10d
    distributed_c10d._get_default_store().get("plan/of/batch")


ACTS = {"sleep": sleep, "compute": compute, "read": read_slowly, "fifo": read_fifo, "pipe": fill_pipe, "starve": lambda: starve(compute),
        "starve-idle": lambda: starve(sleep), "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP), "disk": write_frozen,
        "import": import_slowly, "key": wait_for_key}


def note_time(name):
    (FOLDER / f"{name}.part").write_text(f"{time.monotonic_ns()}\n")
    (FOLDER / f"{name}.part").rename(FOLDER / name)


def note():
    note_time("stalled" if RANK == CULPRIT else f"began.{RANK}")


def reach(phase):
    if phase == PHASE:
        note()
        if RANK == CULPRIT:
            ACTS[KIND]()


def times():
    return time.monotonic_ns(), time.process_time_ns()


def pass_batch(dist, t):
    """The culprit sends a batch in fewer pieces than the others expect. (gloo ends the processes of collectives of other sizes.)"""
    for rank in range(dist.get_world_size()):
        if RANK == CULPRIT and rank != RANK:
            dist.send(t, rank)
    for _ in range(0 if RANK == CULPRIT else 2):
        dist.recv(t, CULPRIT)


def stall_in_step(dist, groups, t):
    if KIND == "size":
        pass_batch(dist, t)
        dist.all_reduce(t)
    elif KIND == "skip":
        dist.barrier(group=groups[1])
    elif KIND == "order":
        dist.all_reduce(t, group=groups[1])
        dist.all_reduce(t)
    else:
        ACTS[KIND]()
        dist.all_reduce(t)


def run(dist, groups, torch):
    t, marks = torch.ones(1000), [(0, 0)] * 4
    beat = beat_of_crun() if STEP < 100 else lambda step: None
    for i in range(STEP + STEPS_BEHIND):
        marks[0] = times() if i == STEP - STEPS_MEASURED else marks[0]
        marks[1] = times() if i == STEP else marks[1]
        marks[2] = times() if i == STEP + 1 else marks[2]
        time.sleep(STEP_MS / 1000)
        beat(i)
        if i == STEP and PHASE == "steps":
            note()
            if RANK == CULPRIT:
                stall_in_step(dist, groups, t)
                continue
            if KIND == "size":
                pass_batch(dist, t)
        dist.all_reduce(t)
        if i % 10 == 9:
            dist.all_reduce(t, group=groups[1])
        if i == STEP + STEPS_MEASURED and STEP >= STEPS_MEASURED:
            marks[3] = times()
            (FOLDER / f"steps.{RANK}").write_text(" ".join(str(b - a) for one, two in ((0, 1), (2, 3)) for a, b in zip(marks[one], marks[two])))


def init(dist):
    if KIND == "port-all":
        os.environ["MASTER_PORT"] = "9"  # discard: refuses
    if PHASE in ("start", "init") and RANK != CULPRIT:
        note()
    elif PHASE == "init" and KIND != "key":
        note()
        if KIND == "port":
            os.environ["MASTER_PORT"] = "9"
        elif KIND != "port-all":
            ACTS[KIND]()
    dist.init_process_group("gloo")
    if PHASE == "init" and KIND == "key" and RANK == CULPRIT:
        note()
        wait_for_key()
    return [None, dist.new_group()]


def main():
    if len(sys.argv) > 7 and int(sys.argv[7]) == RANK:
        threading.Thread(target=move, args=(sys.argv[8],), daemon=True).start()
    if PHASE == "start" and RANK == CULPRIT:
        reach("start")
    import torch  # behind the phase "start"
    import torch.distributed as dist
    torch.set_num_threads(1)
    groups = init(dist)
    if "STALL_DEBUG_PORT" in os.environ:
        from torch.distributed.debug import start_debug_server
        start_debug_server(port=int(os.environ["STALL_DEBUG_PORT"]), fetch_timeout=3)
    if RANK == 0:
        torch.save({"weight": torch.ones(1000)}, FOLDER / "checkpoint")
    reach("load")
    dist.barrier()
    torch.load(FOLDER / "checkpoint")
    run(dist, groups, torch)
    torch.save({"weight": torch.ones(1000)}, FOLDER / f"saved.{RANK}")
    reach("save")
    dist.barrier()
    reach("leave")
    if PHASE == "exit":
        atexit.register(reach, "exit")
    dist.destroy_process_group()


main()
