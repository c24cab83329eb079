"""Microseconds of the MNIST training step in PyTorch on this GPU: batch 64, Adadelta, data resident on the card; eager, the whole
step as one CUDA graph that is made by hand, and torch.compile(mode="reduce-overhead"). Prints one JSON object for each.

torch_speed.py [--only eager_us_fp32] [--device cpu] [STEPS]"""

import argparse
import json
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH, N_ITEMS, N_WARM = 64, 4096, 30


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.n1 = nn.Conv2d(1, 32, 3), nn.BatchNorm2d(32)
        self.conv2, self.n2 = nn.Conv2d(32, 64, 3), nn.BatchNorm2d(64)
        self.fc1, self.fc2 = nn.Linear(1600, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.n1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.n2(self.conv2(x))), 2)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x.flatten(1)))), 1)


class Recipe:
    """Network, data and optimizer. capturable: nothing of the step needs the host."""

    def __init__(self, device, capturable):
        torch.manual_seed(0)
        self.items = torch.randint(0, 256, (N_ITEMS, 1, 28, 28), device=device, dtype=torch.uint8)
        self.labels = torch.randint(0, 10, (N_ITEMS,), device=device)
        self.order = [torch.arange(i, i + BATCH, device=device) % N_ITEMS for i in range(0, N_ITEMS, BATCH)]
        self.net = Net().to(device)
        self.optimizer = torch.optim.Adadelta(self.net.parameters(), lr=0.01, foreach=True, capturable=capturable)

    def loss(self, numbers):
        x = (self.items[numbers].float() / 255 - 0.1307) / 0.3081
        return F.nll_loss(self.net(x), self.labels[numbers])


def eager_step(device):
    r = Recipe(device, False)

    def step(i):
        r.optimizer.zero_grad(set_to_none=True)
        r.loss(r.order[i % len(r.order)]).backward()
        r.optimizer.step()
    return step


def graph_step(device):
    r = Recipe(device, True)
    numbers = r.order[0].clone()

    def body():
        r.loss(numbers).backward()
        r.optimizer.step()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # what is made at the first use must not be made in the capture
        for _ in range(N_WARM):
            r.optimizer.zero_grad(set_to_none=True)
            body()
    torch.cuda.current_stream().wait_stream(stream)
    r.optimizer.zero_grad(set_to_none=True)  # so that the graph writes gradients and does not add to them
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()

    def step(i):
        numbers.copy_(r.order[i % len(r.order)])
        graph.replay()
    return step


def compiled_step(device):
    r = Recipe(device, True)
    forward, take = torch.compile(r.loss, mode="reduce-overhead"), torch.compile(r.optimizer.step)

    def step(i):
        torch.compiler.cudagraph_mark_step_begin()
        r.optimizer.zero_grad(set_to_none=True)
        forward(r.order[i % len(r.order)]).backward()
        take()
    return step


MODES = {"eager": eager_step, "graph": graph_step, "compile": compiled_step}


def step_us(mode, device, tf32, n_steps):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
    step = MODES[mode](device)

    def steps(n):
        for i in range(n):
            step(i)
        if device == "cuda":
            torch.cuda.synchronize()

    steps(min(N_WARM, n_steps))
    started = time.perf_counter()
    steps(n_steps)
    return 1e6 * (time.perf_counter() - started) / n_steps


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--only", choices=[f"{mode}_us_{p}" for mode in MODES for p in ("fp32", "tf32")])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("n_steps", type=int, nargs="?", default=1000)
    a = parser.parse_args()
    if a.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch_speed: PyTorch sees no GPU")
    for mode in MODES:
        for tf32 in (False, True):
            name = f"{mode}_us_{'tf32' if tf32 else 'fp32'}"
            if a.only in (None, name):
                print(json.dumps({"torch": torch.__version__, name: step_us(mode, a.device, tf32, a.n_steps)}), flush=True)


if __name__ == "__main__":
    main()
