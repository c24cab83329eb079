"""A gloo job that is slow but moves, for a while: slow_job.py KIND SECONDS. One rank works, the others wait for it in all_reduce."""

import os
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.utils.data

KIND, END = sys.argv[1], time.monotonic() + float(sys.argv[2])
STEP_S = 25  # longer than the time-out of the test
TURN_S = 4


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, i):
        time.sleep(TURN_S)
        return torch.ones(10)


def turns():
    """Until the step is over: time for one piece of work."""
    end = time.monotonic() + STEP_S
    while time.monotonic() < end:
        yield time.monotonic() + TURN_S


def write_checkpoint():
    with tempfile.TemporaryFile(buffering=0) as f:
        for _ in turns():
            time.sleep(TURN_S)
            f.write(bytes(1 << 16))


def tokenize(end):
    while time.monotonic() < end:
        sum(ord(c) for c in "a text " * 1000)


def normalize(end):
    t = torch.ones(300, 300)
    while time.monotonic() < end:
        t = t @ t
        t = t / t.norm()


def prepare():
    for i, end in enumerate(turns()):
        (tokenize if i % 2 else normalize)(end)


def compile_code():
    for _ in turns():
        subprocess.run([sys.executable, "-c", f"import time\nend = time.monotonic() + {TURN_S}\nwhile time.monotonic() < end: pass"],
                       check=True)


def beat():
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../python"))
    from crun_launch.worker import beat as publish  # noqa: PLC0415
    for step, _ in enumerate(turns()):
        publish(step)
        time.sleep(TURN_S)


def load():
    for i, _ in enumerate(torch.utils.data.DataLoader(Slow(), num_workers=1, batch_size=1)):
        if (i + 1) * TURN_S >= STEP_S:
            return


WORK = {"checkpoint": write_checkpoint, "compute": prepare, "compile": compile_code, "beat": beat, "data": load}


def main():
    dist.init_process_group("gloo")
    goes_on = torch.ones(1)
    worker = 0
    while goes_on.item():
        if dist.get_rank() == worker:
            WORK[KIND]()
        goes_on = torch.tensor([float(time.monotonic() < END)]) if dist.get_rank() == 0 else torch.zeros(1)
        dist.all_reduce(goes_on)
        worker = (worker + 1) % dist.get_world_size()


main()
