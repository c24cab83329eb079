"""Microseconds of the MNIST training step in PyTorch on this GPU: batch 64, Adadelta, data resident on the card;
eager, and torch.compile(mode="reduce-overhead"). Prints one JSON object for each configuration.

torch_speed.py [--only CONFIGURATION] [STEPS]"""

import argparse
import json
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH, N_ITEMS = 64, 4096


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


def step_us(compiled, tf32, n_steps):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    items = torch.randint(0, 256, (N_ITEMS, 1, 28, 28), device="cuda", dtype=torch.uint8)
    labels = torch.randint(0, 10, (N_ITEMS,), device="cuda")
    net = Net().cuda()
    optimizer = torch.optim.Adadelta(net.parameters(), lr=0.01, foreach=True, capturable=compiled)

    def loss_of(numbers):
        x = (items[numbers].float() / 255 - 0.1307) / 0.3081
        return F.nll_loss(net(x), labels[numbers])

    forward = torch.compile(loss_of, mode="reduce-overhead") if compiled else loss_of
    take = torch.compile(optimizer.step) if compiled else optimizer.step
    order = [torch.arange(i, i + BATCH, device="cuda") % N_ITEMS for i in range(0, N_ITEMS, BATCH)]

    def steps(n):
        for i in range(n):
            if compiled:
                torch.compiler.cudagraph_mark_step_begin()
            optimizer.zero_grad(set_to_none=True)
            forward(order[i % len(order)]).backward()
            take()
        torch.cuda.synchronize()

    steps(30)
    started = time.perf_counter()
    steps(n_steps)
    return 1e6 * (time.perf_counter() - started) / n_steps


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--only")
    parser.add_argument("n_steps", type=int, nargs="?", default=1000)
    a = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("torch_speed: PyTorch sees no GPU")
    for compiled in (False, True):
        for tf32 in (False, True):
            name = f"{'compile' if compiled else 'eager'}_us_{'tf32' if tf32 else 'fp32'}"
            if a.only in (None, name):
                print(json.dumps({"torch": torch.__version__, name: step_us(compiled, tf32, a.n_steps)}), flush=True)


if __name__ == "__main__":
    main()
