"""The recipe of `train classifier` in PyTorch; see torch_trainer.py."""

import collections

import torch
import torch.nn.functional as F
from torch import nn

import torch_trainer

N_TRAINING, N_TEST, N_INPUTS, N_HIDDEN, N_CLASSES = 1000, 500, 20, 64, 10


def make_net():
    return nn.Sequential(collections.OrderedDict(
        hidden=nn.Linear(N_INPUTS, N_HIDDEN), relu=nn.ReLU(), output=nn.Linear(N_HIDDEN, N_CLASSES)))


def make_samples():
    """As worker-runtime/programs/classifier.c says: all inputs, all classes, training samples first."""
    generator = torch.Generator().manual_seed(1)
    centres = torch.empty(N_CLASSES, N_INPUTS).uniform_(-1, 1, generator=generator)
    x, y = torch.empty(N_TRAINING + N_TEST, N_INPUTS), torch.empty(N_TRAINING + N_TEST, dtype=torch.int64)
    for i in range(len(x)):
        y[i] = int(torch.empty(1).uniform_(0, 1, generator=generator).item() * N_CLASSES)
        x[i].uniform_(-1, 1, generator=generator)
        x[i] += centres[y[i]]
    return x, y


def main():
    a = torch_trainer.arguments("adamw", lr=1e-4, epochs=10, batch_size=8, log_every=1).parse_args()
    x, y = make_samples()
    with torch_trainer.process_group():
        trainer = torch_trainer.Trainer(a, make_net, F.cross_entropy, gathers=True)
        trainer.train(x[:N_TRAINING], y[:N_TRAINING], (x[N_TRAINING:], y[N_TRAINING:]))


if __name__ == "__main__":
    main()
