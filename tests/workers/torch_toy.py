"""The recipe of `train toy` in PyTorch; see torch_trainer.py."""

import torch
import torch.nn.functional as F
from torch import nn

import torch_trainer

N_SAMPLES = 1000


def make_samples(n_in, n_out):
    """As worker-runtime/programs/toy.c says."""
    generator = torch.Generator().manual_seed(1)
    x, y = torch.empty(N_SAMPLES, n_in), torch.empty(N_SAMPLES, n_out)
    for i in range(N_SAMPLES):
        x[i].uniform_(-1, 1, generator=generator)
        y[i].uniform_(-0.1, 0.1, generator=generator)
    j = 2 * torch.arange(n_out)
    return x, (x[:, j] - x[:, j + 1]) + y


def main():
    p = torch_trainer.arguments("sgd", lr=0.01, epochs=10, batch_size=None)
    p.add_argument("--shape", choices=("10x2", "20x1"), default="10x2")
    a = p.parse_args()
    n_in, n_out = map(int, a.shape.split("x"))
    a.batch_size = a.batch_size or (32 if a.shape == "20x1" else 10)
    with torch_trainer.process_group():
        torch_trainer.Trainer(a, lambda: nn.Linear(n_in, n_out), F.mse_loss).train(*make_samples(n_in, n_out))


if __name__ == "__main__":
    main()
