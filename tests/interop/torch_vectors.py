#!/usr/bin/env python3
"""Writes tests/unit/worker-runtime/torch_vectors.h: what PyTorch computes, for the unit tests of libcrw.

    python3 tests/interop/torch_vectors.py > tests/unit/worker-runtime/torch_vectors.h

All inputs come out of PyTorch's own generator, which libcrw reproduces bit for bit, so the header holds
results only. test_torch_vectors.py runs this and compares with the committed header.

One thing is replaced: the square root of the optimizers. PyTorch takes it from MKL, which rounds correctly on
some processors and is off by one unit in the last place on others (a fifth of all elements on an AMD EPYC with
AVX-512), so that PyTorch itself does not compute the same AdamW on two machines. Here it rounds correctly.
"""

import contextlib
import math
import sys

import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)


def exact_sqrt(t):
    return torch.sqrt(t.double()).float()  # a double's rounding error cannot reach a float's


@contextlib.contextmanager
def rounded_correctly():
    kept = torch.Tensor.sqrt, torch.Tensor.sqrt_
    torch.Tensor.sqrt, torch.Tensor.sqrt_ = exact_sqrt, lambda t: t.copy_(exact_sqrt(t))
    try:
        yield
    finally:
        torch.Tensor.sqrt, torch.Tensor.sqrt_ = kept


def crc32c(data: bytes) -> int:
    table = []
    for i in range(256):
        for _ in range(8):
            i = (i >> 1) ^ (0x82F63B78 if i & 1 else 0)
        table.append(i)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def flat_crc(tensors) -> int:
    return crc32c(b"".join(t.detach().contiguous().numpy().tobytes() for t in tensors))


def uniform(seed, count, a, b):
    return torch.empty(count).uniform_(a, b, generator=torch.Generator().manual_seed(seed))


def labels(seed, count, classes):
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)) % classes


def c_float(x: float) -> str:
    if math.isnan(x):
        return "NAN"
    text = f"{x:.9g}"  # enough for every bit of a float
    return text + ("f" if "." in text or "e" in text else ".0f")


def array(name, values):
    values = [c_float(v) for v in torch.as_tensor(values).detach().flatten().tolist()]
    print(f"static const float {name}[{len(values)}] = {{")
    line = "   "
    for v in values:
        if len(line) + len(v) > 108:
            print(line)
            line = "   "
        line += f" {v},"
    print(line)
    print("};\n")


# ---------------------------------------------------------------- networks


def mnist():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1600, 128), nn.ReLU(), nn.Linear(128, 10), nn.LogSoftmax(1),
    )  # fmt: skip


def odd():
    """No width, height or number of channels is a multiple of anything; layers in every order."""
    return nn.Sequential(
        nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 7, 2), nn.ReLU(), nn.MaxPool2d(2),
        nn.BatchNorm2d(7), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 4),
        nn.LogSoftmax(1),
    )  # fmt: skip


def norm_first():
    return nn.Sequential(
        nn.BatchNorm2d(2), nn.Conv2d(2, 17, 3), nn.BatchNorm2d(17), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(17, 3, 1),
        nn.Flatten(), nn.LogSoftmax(1),
    )  # fmt: skip


def train(net, shape, n, n_steps, optimizer, seed):
    """Losses of the steps, and the first step's output and gradients."""
    losses, first = [], None
    for step in range(n_steps):
        x = uniform(seed + step, n * math.prod(shape), -0.5, 2.8).view(n, *shape)
        optimizer.zero_grad()
        out = net(x)
        loss = F.nll_loss(out, labels(seed + step, n, out.shape[1]))
        loss.backward()
        if step == 0:
            first = (out.detach().clone(), [p.grad.clone() for p in net.parameters()])
        optimizer.step()
        losses.append(loss.item())
    return losses, first


def running(net):
    return torch.cat([b.flatten() for b in net.buffers() if b.dtype == torch.float32])


def small_net(name, make, shape, n):
    torch.manual_seed(3)
    net = make().train()
    with torch.no_grad():  # so that gamma and beta are not 1 and 0
        for i, m in enumerate(net):
            if isinstance(m, nn.BatchNorm2d):
                m.weight.copy_(uniform(50 + i, m.num_features, -1, 1.5))
                m.bias.copy_(uniform(70 + i, m.num_features, -1, 1))
    losses, (out, grads) = train(net, shape, n, 5, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), 400)
    array(f"{name}_output", out)
    array(f"{name}_gradients", torch.cat([g.flatten() for g in grads]))
    array(f"{name}_losses", losses)
    array(f"{name}_parameters", torch.cat([p.flatten() for p in net.parameters()]))
    array(f"{name}_running", running(net))
    net.eval()
    array(f"{name}_eval", net(uniform(500, n * math.prod(shape), -0.5, 2.8).view(n, *shape)))


def relu_first():
    return nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 5))


def input_gradient(name, make, shape, n):
    """Of the sum of the outputs, each times a number of its own."""
    torch.manual_seed(3)
    net = make().train()
    x = uniform(600, n * math.prod(shape), -0.5, 2.8).view(n, *shape).requires_grad_()
    out = net(x)
    (out * uniform(601, out.numel(), -1, 1).view(out.shape)).sum().backward()
    array(f"{name}_d_input", x.grad)
    array(f"{name}_d_parameters", torch.cat([p.grad.flatten() for p in net.parameters()]))


def mnist_net():
    torch.manual_seed(0)
    net = mnist().train()
    losses, (out, grads) = train(net, (1, 28, 28), 64, 10, torch.optim.Adadelta(net.parameters(), lr=1.0), 1000)
    array("mnist_output", out[:2])
    print("/* Of each gradient: its norm, and the elements 0, 1/3, 2/3 and last. */")
    picked = []
    for g in grads:
        flat, n = g.flatten(), g.numel()
        picked += [g.double().norm().item()] + [flat[i].item() for i in (0, n // 3, 2 * n // 3, n - 1)]
    array("mnist_gradients", torch.tensor(picked, dtype=torch.float64).float())
    array("mnist_losses", losses)
    array("mnist_running", running(net))
    net.eval()
    array("mnist_eval", net(uniform(2000, 5 * 784, -0.5, 2.8).view(5, 1, 28, 28)))


def init_crcs():
    print("static const struct { uint64_t seed; uint32_t crc; } mnist_init[] = {")
    for seed in (0, 1, 42, 2**40 + 5, 2**64 - 1):
        torch.manual_seed(seed - 2**64 if seed >= 2**63 else seed)
        print(f"    {{{seed}u, 0x{flat_crc(mnist().parameters()):08x}u}},")
    print("};\n")


# ---------------------------------------------------------------- optimizers

OPTIMIZER_COUNT = 4099

EXACT = [
    ("CRW_SGD", torch.optim.SGD, dict(lr=0.1)),
    ("CRW_SGD", torch.optim.SGD, dict(lr=0.01, weight_decay=5e-4)),
    ("CRW_SGD", torch.optim.SGD, dict(lr=0.1, momentum=0.9)),
    ("CRW_SGD", torch.optim.SGD, dict(lr=0.1, momentum=0.9, weight_decay=5e-4)),
    ("CRW_SGD", torch.optim.SGD, dict(lr=0.1, momentum=0.8, dampening=0.3, weight_decay=1e-2)),
    ("CRW_SGD", torch.optim.SGD, dict(lr=0.1, momentum=0.9, nesterov=True)),
    ("CRW_SGD", torch.optim.SGD, dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1)),
    ("CRW_ADAMW", torch.optim.AdamW, dict(lr=1e-2)),
    ("CRW_ADAMW", torch.optim.AdamW, dict(lr=1e-4)),
    ("CRW_ADAMW", torch.optim.AdamW, dict(lr=1e-3, weight_decay=0.0, betas=(0.8, 0.95), eps=1e-6)),
    ("CRW_ADAMW", torch.optim.AdamW, dict(lr=1e-3, betas=(0.3, 0.99))),
]


def run_optimizer(cls, options, count, n_steps):
    p = nn.Parameter(uniform(10, count, -1, 1))
    optimizer = cls([p], **options, foreach=False)
    for step in range(n_steps):
        p.grad = uniform(11 + step, count, -1, 1)
        with rounded_correctly():
            optimizer.step()
    return p.detach(), optimizer.state[p]


def c_options(kind, options):
    fields = []
    for key, value in options.items():
        if key == "betas":
            fields += [f".beta1 = {value[0]!r}", f".beta2 = {value[1]!r}"]
        else:
            fields.append(f".{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}")
    if kind == "CRW_ADAMW":
        for key, default in ((".beta1", 0.9), (".beta2", 0.999), (".eps", 1e-8), (".weight_decay", 1e-2)):
            if not any(f.startswith(key) for f in fields):
                fields.append(f"{key} = {default!r}")
    return ", ".join(fields)


def optimizers():
    print("/* uniform(10) in [-1, 1) and five gradients uniform(11 + step): CRC-32C of all parameters after. */")
    print(f"enum {{ OPTIMIZER_COUNT = {OPTIMIZER_COUNT} }};")
    print("static const struct { struct crw_optimizer_options options; uint32_t crc; } exact_optimizers[] = {")
    for kind, cls, options in EXACT:
        p, _ = run_optimizer(cls, options, OPTIMIZER_COUNT, 5)
        print(f"    {{{{.kind = {kind}, {c_options(kind, options)}}}, 0x{flat_crc([p]):08x}u}},")
    print("};\n")
    for name, options in (("plain", dict(lr=0.01)), ("decay", dict(lr=1.0, weight_decay=0.1))):
        p, state = run_optimizer(torch.optim.Adadelta, options, 131, 8)
        array(f"adadelta_{name}", p)
        array(f"adadelta_{name}_square_avg", state["square_avg"])
        array(f"adadelta_{name}_acc_delta", state["acc_delta"])


def losses():
    """Outputs uniform(80) as they come out of a network, targets uniform(81) or labels(82)."""
    for name, loss_of in (
        ("mse", lambda y: F.mse_loss(y, uniform(81, 6 * 5, -3, 3).view(6, 5))),
        ("cross_entropy", lambda y: F.cross_entropy(y, labels(82, 6, 5))),
        ("cross_entropy_ignoring", lambda y: F.cross_entropy(y, labels(82, 6, 5).index_fill(0, torch.tensor([2, 4]), -100))),
        ("nll_ignoring", lambda y: F.nll_loss(y, labels(82, 6, 5), ignore_index=3)),
    ):
        y = uniform(80, 6 * 5, -3, 3).view(6, 5).requires_grad_()
        loss = loss_of(y)
        loss.backward()
        array(f"{name}_loss", loss)
        array(f"{name}_gradient", y.grad)
    y = uniform(84, 4 * 300, -3, 3).view(4, 300).requires_grad_()
    loss = F.cross_entropy(y, torch.tensor([299, 256, 17, 255]))
    loss.backward()
    array("cross_entropy_wide_loss", loss)
    array("cross_entropy_wide_norm", y.grad.norm())
    array("cross_entropy_wide_of_targets", y.grad[range(4), [299, 256, 17, 255]])
    for name, count in (("few", 22), ("many", 5000)):
        p = nn.Parameter(torch.zeros(count))
        p.grad = uniform(83, count, -1, 1)
        array(f"clip_{name}_norm", nn.utils.clip_grad_norm_([p], 0.5))
        array(f"clip_{name}_first", p.grad[:5])


def main():
    print("/* Written by tests/interop/torch_vectors.py; do not edit. */\n")
    print("#pragma once\n\n#include <math.h>\n\n#include \"worker-runtime/crw.h\"\n")
    print("/* clang-format off */\n")
    array("uniform_seed_7", uniform(7, 40, -0.3, 0.7))
    init_crcs()
    optimizers()
    losses()
    small_net("odd", odd, (3, 9, 8), 5)
    small_net("norm_first", norm_first, (2, 6, 7), 3)
    input_gradient("odd", odd, (3, 9, 8), 5)
    input_gradient("norm_first", norm_first, (2, 6, 7), 3)
    input_gradient("relu_first", relu_first, (3, 4, 5), 2)
    mnist_net()


if __name__ == "__main__":
    sys.exit(main())
