"""The recipe of `train mnist` in PyTorch; see torch_trainer.py."""

import gzip
import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import torch_trainer

FASHION_MNIST = "/usr/share/datasets/fashion-mnist"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.n1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.n2 = nn.BatchNorm2d(64)
        self.fc1 = nn.Linear(1600, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.n1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.n2(self.conv2(x))), 2)
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return F.log_softmax(self.fc2(x), dim=1)


def read_idx(folder, name):
    for path, opener in ((f"{folder}/{name}", open), (f"{folder}/{name}.gz", gzip.open)):
        if os.path.exists(path):
            with opener(path, "rb") as f:
                raw = f.read()
            n_dims = raw[3]
            shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(n_dims)]
            return np.frombuffer(raw, np.uint8, offset=4 + 4 * n_dims).reshape(shape)
    raise SystemExit(f"no {name} in {folder}")


def images_as_input(images):
    x = torch.from_numpy(images.astype(np.float32)) / 255
    return ((x - 0.1307) / 0.3081).unsqueeze(1)


def main():
    p = torch_trainer.arguments("adadelta", lr=0.01, epochs=5, batch_size=64)
    p.add_argument("--data", default=FASHION_MNIST)
    a = p.parse_args()
    parts = [(images_as_input(read_idx(a.data, f"{name}-images-idx3-ubyte")),
              torch.from_numpy(read_idx(a.data, f"{name}-labels-idx1-ubyte").astype(np.int64)))
             for name in ("train", "t10k")]
    with torch_trainer.process_group():
        torch_trainer.Trainer(a, Net, F.nll_loss, "images").train(*parts[0], parts[1])


if __name__ == "__main__":
    main()
