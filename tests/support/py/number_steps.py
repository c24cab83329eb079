"""Random settings of optimizers and samplers, and what PyTorch makes of them, to the last bit."""

import numpy
import torch
from torch.utils.data import DistributedSampler

from number_cases import OPTIMIZER, SAMPLER, Case, Expected, doubles, floats, int64s, ints
from torch_vectors import rounded_correctly

OPTIMIZERS = (torch.optim.SGD, torch.optim.AdamW, torch.optim.Adadelta)
STATES = (["momentum_buffer"], ["exp_avg", "exp_avg_sq"], ["square_avg", "acc_delta"])


def options_of(rng, kind):
    def one_of(*values):
        return float(rng.choice(values))

    decay = dict(lr=10 ** rng.uniform(-5, 0), weight_decay=one_of(0, 10 ** rng.uniform(-5, -0.5)))
    if kind == 0:
        momentum = one_of(0, 0.9, rng.uniform(0.01, 1.1))
        nesterov = momentum > 0 and rng.random() < 0.4
        return dict(decay, momentum=momentum, dampening=0.0 if nesterov else one_of(0, rng.uniform(0, 1)), nesterov=nesterov)
    eps = 10 ** rng.uniform(-10, -3)
    if kind == 1:
        return dict(decay, betas=(one_of(0, 0.9, rng.uniform(0, 1)), one_of(0, 0.999, rng.uniform(0, 1))), eps=eps)
    return dict(decay, rho=one_of(0, 0.9, 1, rng.uniform(0, 1)), eps=eps)


def optimizer_case(seed):
    rng = numpy.random.default_rng(seed)
    kind, count, n_steps = int(rng.integers(3)), int(rng.integers(1, 300)), int(rng.integers(1, 13))
    options, resume_at = options_of(rng, kind), int(rng.integers(-1, n_steps))
    beta1, beta2 = options.get("betas", (0.9, 0.999))
    p = torch.nn.Parameter(torch.tensor(numpy.float32(rng.normal(size=count))))
    sent = [ints(OPTIMIZER, kind, options.get("nesterov", False)),
            doubles(options["lr"], options["weight_decay"], options.get("momentum", 0), options.get("dampening", 0), beta1, beta2,
                    options.get("eps", 0), options.get("rho", 0)),
            ints(count, n_steps, resume_at), floats(p.detach().numpy())]
    optimizer = OPTIMIZERS[kind]([p], **options, foreach=False)
    for _ in range(n_steps):
        if rng.random() < 0.3:
            optimizer.param_groups[0]["lr"] *= float(rng.uniform(0.1, 2))
        gradients = numpy.float32(rng.normal(0, 10 ** rng.uniform(-3, 1), count))
        gradients[rng.random(count) < 0.05] = 0
        sent += [doubles(optimizer.param_groups[0]["lr"]), floats(gradients)]
        p.grad = torch.tensor(gradients)
        with rounded_correctly():
            optimizer.step()
    states = [name for name in STATES[kind] if optimizer.state[p].get(name) is not None]
    expected = [Expected("parameters", p.detach().numpy()), *(Expected(name, optimizer.state[p][name].numpy()) for name in states)]
    return Case(f"{OPTIMIZERS[kind].__name__}({options}), {count} parameters, {n_steps} steps, resumed at {resume_at}",
                b"".join(sent), expected)


def rest_of_epoch(n, world_size, rank, drop_last, consumed, permutation):
    """DistributedSampler's turns over what is left of the list; the last turn is filled from the start of the list."""
    left = n - consumed
    turns = left // world_size if drop_last else -(-left // world_size)
    return [permutation[(consumed + turn * world_size + rank) % n] for turn in range(turns)]


def sampler_case(seed):
    rng = numpy.random.default_rng(seed)
    n = int(rng.integers(0, rng.choice((4, 20, 300, 300, 3000))))
    world_size = int(rng.choice((1, 2, 3, rng.integers(1, 20), rng.integers(1, 300))))
    rank, batch = int(rng.integers(world_size)), int(rng.integers(1, rng.choice((3, 70))))
    shuffle, drop_last = bool(rng.random() < 0.8), bool(rng.random() < 0.4)
    seeds = 0, int(rng.integers(2**32)), 2**32 - 1, 2**32, int(rng.integers(2**32, 2**63)), 2**64 - 1001
    random_seed = seeds[rng.integers(len(seeds))]
    epoch = int(rng.choice((0, 1, rng.integers(1000))))
    consumed = int(rng.integers(n + 1)) if rng.random() < 0.3 else 0
    sampler = DistributedSampler(range(n), world_size, rank, shuffle, random_seed, drop_last)
    sampler.set_epoch(epoch)
    indices = list(sampler)
    if consumed:
        generator = torch.Generator().manual_seed(random_seed + epoch)
        permutation = torch.randperm(n, generator=generator).tolist() if shuffle else list(range(n))
        indices = rest_of_epoch(n, world_size, rank, drop_last, consumed, permutation)
    figures = [len(indices), -(-len(indices) // batch), min(n, consumed + len(indices) * world_size)]
    sent = ints(SAMPLER, n, rank, world_size, shuffle, drop_last, batch) + int64s(random_seed, epoch, consumed)
    return Case(f"DistributedSampler of {n}, rank {rank} of {world_size}, seed {random_seed}, epoch {epoch}, shuffle {shuffle}, "
                f"drop_last {drop_last}, from {consumed}, batches of {batch}", sent,
                [Expected("samples, batches, consumed, indices", numpy.array(figures + indices, float))])
