"""Random chains of layers with their data, what PyTorch computes of them in float64, and how far fp32 may be from that.

Each number carries the variance of the error that fp32 sums of as many terms as it has, and the errors of what it was
computed from, give it: a comparison allows SIGMAS standard deviations. Where such an error could change a decision (a relu
near 0, two near maxima of a pooling window), the case is drawn again. Half of the chains hold small integers: each sum is
exact then, so that every bit has to be PyTorch's, ties included, and so are the products of bf16.
"""

import math

import numpy
import torch
import torch.nn.functional as F

from number_cases import CHAIN, SIGMAS, Case, Expected, floats, int64s, ints

U = 2.0**-24  # the largest relative error of one rounding
EXACT_BELOW = 2.0**24
FORWARD, D_OUTPUT, D_INPUT, NLL, CROSS_ENTROPY, MSE = range(6)
LINEAR, CONV, NORM, RELU, POOL, FLATTEN, LOG_SOFTMAX = range(7)
NAMES = ("linear", "conv", "norm", "relu", "pool", "flatten", "log_softmax")


class Ambiguous(Exception):
    """A decision of this case depends on rounding."""


def check_exact(*terms):
    """Sums of absolute products: below 2^24 every order of integers gives the same."""
    if any(t.numel() and t.max() >= EXACT_BELOW for t in terms):
        raise Ambiguous


def per_channel(t):
    return t.view(1, -1, 1, 1)


class RoundedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return y.clone()

    @staticmethod
    def backward(ctx, dy):
        return rounded(dy)


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return rounded(x)

    @staticmethod
    def backward(ctx, dx):
        return dx


def rounded(x):
    return x.float().bfloat16().double()


class Layer:
    """forward(x, vx, training) -> y, vy; backward(dy, vdy, dx) -> vdx. A chain of integers (u = 0) has no variances."""
    parameters = buffers = ()
    n_in = n_out = kernel = 0

    def __init__(self, u, bf16=False):
        self.u2, self.bf16 = u * u, bf16

    def __repr__(self):
        return NAMES[self.kind] + (f"({self.n_in}, {self.n_out}, {self.kernel})" if self.n_in else "")


class Product(Layer):
    """Linear layers and convolutions. Subclasses: the product, and its transposes."""

    def forward(self, x, vx, training):
        w, b = self.parameters
        self.x, self.w, self.vx = (rounded(x.detach()), rounded(w.detach()), vx) if self.bf16 else (x.detach(), w.detach(), vx)
        y = self.product(Rounded.apply(x), Rounded.apply(w), b) if self.bf16 else self.product(x, w, b)
        if not self.u2:
            check_exact(self.product(self.x.abs(), self.w.abs(), b.detach().abs()))
            return (RoundedGradient.apply(y) if self.bf16 else y), torch.zeros_like(y)
        terms = self.u2 * self.w[0].numel()
        squares = self.product(self.x**2, self.w**2, b.detach()**2)
        return y, self.product(vx, self.w**2) + terms * (squares + y.detach()**2)

    def backward(self, dy, vdy, dx):
        w, b = self.parameters
        if not self.u2:
            dy = (rounded(dy) if self.bf16 else dy).abs()
            check_exact(self.to_input(self.w.abs(), dy), self.to_weight(self.x.abs(), dy), self.to_bias(dy))
            return torch.zeros_like(dx)
        terms, terms_w = self.u2 * self.w[:, 0].numel(), self.u2 * dy.numel() / dy.shape[1]
        error = vdy + terms_w * dy**2
        w.variance = self.to_weight(self.x**2, error) + self.to_weight(self.vx, dy**2) + terms_w * w.grad**2
        b.variance = self.to_bias(error) + terms_w * b.grad**2
        return self.to_input(self.w**2, vdy + terms * dy**2) + terms * dx**2


class Linear(Product):
    kind = LINEAR
    product = staticmethod(F.linear)

    def to_input(self, w, dy):
        return dy @ w

    def to_weight(self, x, dy):
        return dy.T @ x

    def to_bias(self, dy):
        return dy.sum(0)


class Conv(Product):
    kind = CONV
    product = staticmethod(F.conv2d)

    def to_input(self, w, dy):
        return F.conv_transpose2d(dy, w)

    def to_weight(self, x, dy):
        return F.conv2d(x.transpose(0, 1), dy.transpose(0, 1)).transpose(0, 1)

    def to_bias(self, dy):
        return dy.sum((0, 2, 3))


class Norm(Layer):
    kind = NORM
    v_mean = v_var = 0.0

    def forward(self, x, vx, training):
        (gamma, beta), (mean, var, count), u2, axes = self.parameters, self.buffers, self.u2, (0, 2, 3)
        gamma, beta, xd = gamma.detach(), beta.detach(), x.detach()
        self.m = m = x.numel() // x.shape[1]
        mu, sigma2 = (xd.mean(axes), xd.var(axes, correction=0)) if training else (mean.clone(), var.clone())
        self.inverse = inverse = (sigma2 + 1e-5).rsqrt()
        self.x_hat = x_hat = (xd - per_channel(mu)) * per_channel(inverse)
        y = F.batch_norm(x, mean, var, *self.parameters, training, 0.1, 1e-5)
        if training:
            count += 1
            v_mu = vx.mean(axes) / m + u2 * (4 * mu**2 + sigma2)
            v_inverse = inverse**2 * (x_hat**2 * vx).mean(axes) / m + u2 * (m / 4 + 8)  # relative
            unbiased = m / (m - 1)
            v_sigma2 = unbiased**2 * (4 / inverse**2 * (x_hat**2 * vx).mean(axes) / m + u2 * (m + 8) * sigma2**2)
            self.v_mean = 0.81 * self.v_mean + 0.01 * v_mu + u2 * mean**2
            self.v_var = 0.81 * self.v_var + 0.01 * v_sigma2 + u2 * var**2
        else:
            v_mu, v_inverse = self.v_mean + 4 * u2 * mu**2, self.v_var * inverse**4 / 4 + 8 * u2
        self.v_mu, self.v_inverse = v_mu, v_inverse
        shared = 16 * (v_mu + 4 * u2 * mu**2)  # the errors of a channel's mean add up in later sums
        v_centred = vx + 4 * u2 * xd**2 + per_channel(shared)
        self.v_x_hat = per_channel(inverse**2) * v_centred + x_hat**2 * per_channel(v_inverse)
        return y, per_channel(gamma**2) * self.v_x_hat + 4 * u2 * (per_channel(beta**2) + y.detach()**2)

    def backward(self, dy, vdy, dx):
        (gamma, beta), axes, x_hat, m = self.parameters, (0, 2, 3), self.x_hat, self.m
        terms = self.u2 * m
        beta.variance = (vdy + terms * dy**2).sum(axes) + terms * beta.grad**2
        gamma.variance = ((vdy + terms * dy**2) * x_hat**2 + dy**2 * self.v_x_hat).sum(axes)
        gamma.variance += (terms + self.v_inverse) * gamma.grad**2 + self.v_mu * self.inverse**2 * beta.grad**2
        along = x_hat**2 * per_channel((gamma.grad / m)**2)
        inner = vdy + per_channel(beta.variance) / m**2 + x_hat**2 * per_channel(gamma.variance) / m**2
        inner += self.v_x_hat * per_channel((gamma.grad / m)**2) + 4 * per_channel(self.v_inverse) * along
        inner += 4 * self.u2 * (dy**2 + per_channel((beta.grad / m)**2) + along)
        return per_channel((gamma.detach() * self.inverse)**2) * inner + per_channel(self.v_inverse) * dx**2


class Relu(Layer):
    kind = RELU

    def forward(self, x, vx, training):
        y = F.relu(x)
        if (x.detach().abs() < SIGMAS * vx.sqrt()).any():
            raise Ambiguous
        self.lives = y.detach() > 0
        return y, vx * self.lives

    def backward(self, dy, vdy, dx):
        return vdy * self.lives


class Pool(Layer):
    kind = POOL

    def forward(self, x, vx, training):
        n, c, h, w = x.shape
        y, self.places = F.max_pool2d(x, 2, return_indices=True)

        def windows(t):
            t = t[:, :, :h // 2 * 2, :w // 2 * 2].reshape(n, c, h // 2, 2, w // 2, 2)
            return t.transpose(3, 4).reshape(-1, 4)

        best, at = windows(x.detach()).topk(2)
        if (best[:, 0] - best[:, 1] < SIGMAS * windows(vx).gather(1, at).sum(1).sqrt()).any():
            raise Ambiguous
        return y, vx.flatten(2).gather(2, self.places.flatten(2)).view(y.shape)

    def backward(self, dy, vdy, dx):
        vdx = torch.zeros_like(dx).flatten(2)
        return vdx.scatter_(2, self.places.flatten(2), vdy.flatten(2)).view(dx.shape)


class Flatten(Layer):
    kind = FLATTEN

    def forward(self, x, vx, training):
        self.shape = x.shape
        return x.flatten(1), vx.flatten(1)

    def backward(self, dy, vdy, dx):
        return vdy.view(self.shape)


class LogSoftmax(Layer):
    kind = LOG_SOFTMAX

    def forward(self, x, vx, training):
        y, xd = F.log_softmax(x, 1), x.detach()
        self.p = p = y.detach().exp()
        largest = xd.abs().amax(1, keepdim=True)
        roundings = 4 * (xd**2 + largest**2 + y.detach()**2) + (x.shape[1] / 4)**2 + 4  # equal terms round alike
        self.vy = vx + (p**2 * vx).sum(1, keepdim=True) + self.u2 * roundings
        return y, self.vy

    def backward(self, dy, vdy, dx):
        total, terms = dy.sum(1, keepdim=True), self.u2 * dy.shape[1]
        shared = vdy.sum(1, keepdim=True) + terms * ((dy**2).sum(1, keepdim=True) + total**2)
        shared = shared + total**2 * (self.vy + 4 * self.u2)
        return vdy + 4 * self.u2 * dy**2 + self.p**2 * shared * dy.shape[1]  # one error of all elements of a row


# ---- what is drawn

def channels(rng):
    low, high = ((1, 9), (9, 18), (17, 33), (33, 50))[rng.choice(4, p=(0.4, 0.25, 0.25, 0.1))]
    return int(rng.integers(low, high))


class Chain:
    """Layers drawn one after the other; shape is what leaves the last."""

    def __init__(self, rng, exact):
        self.rng, self.exact, self.u = rng, exact, 0.0 if exact else U
        self.bf16 = exact and rng.random() < 0.3
        self.max_batch = int(rng.integers(1, 7))
        self.budget = float(rng.choice((3e4, 1e5, 3e5)))  # products of a layer for the largest batch
        self.least_batch = 1  # of a step of training
        self.layers = []
        height, width = (int(n) for n in rng.integers(1, 13, 2))
        self.shape = self.input = (channels(rng), height, width)
        self.flat = rng.random() < 0.15
        if self.flat:
            self.shape = self.input = (int(rng.integers(1, 130)), 1, 1)
        for _ in range(rng.integers(1, 10)):
            self.add(self.kind())
        if not self.flat:
            self.add(FLATTEN)

    def kind(self):
        c, h, w = self.shape
        if self.flat:
            return self.rng.choice((LINEAR, LINEAR, RELU, FLATTEN, LINEAR if self.exact else LOG_SOFTMAX))
        kinds = [CONV, CONV, CONV, CONV if self.exact else NORM]
        if self.layers or h > 1 or w > 1:  # else it would be a vector
            kinds += [RELU, FLATTEN] if self.layers else [RELU]
        if not self.exact and self.layers and self.layers[-1].kind == NORM:
            kinds += [RELU] * 12  # one step with the layer before, and the pool behind another one
        if h > 1 and w > 1:
            kinds += [POOL] * (8 if [layer.kind for layer in self.layers[-2:]] == [NORM, RELU] else 1)
        return self.rng.choice(kinds)

    def parameter(self, shape, spread):
        if self.exact:
            values = self.rng.integers(-2, 3, shape) * (self.rng.random(shape) < self.density)
        else:
            values = self.rng.uniform(-spread, spread, shape)
        return torch.tensor(numpy.float32(values).astype(float), requires_grad=True)

    def add_product(self, kind, terms, kernel):
        layer, (c, h, w) = (Linear if kind == LINEAR else Conv)(self.u, self.bf16), self.shape
        places = (h - kernel + 1) * (w - kernel + 1) * self.max_batch
        layer.n_in, layer.kernel = c, 0 if kind == LINEAR else kernel
        layer.n_out = max(1, min(channels(self.rng), int(self.budget / (terms * places))))
        self.density = min(1.0, 6 / terms)
        shape = (layer.n_out, c) if kind == LINEAR else (layer.n_out, c, kernel, kernel)
        layer.parameters = self.parameter(shape, math.sqrt(3 / terms)), self.parameter(layer.n_out, 1)
        self.shape = layer.n_out, h - kernel + 1, w - kernel + 1
        return layer

    def add_norm(self):
        layer, (c, h, w) = Norm(self.u), self.shape
        layer.n_in = c
        layer.parameters = self.parameter(c, 1.5), self.parameter(c, 1)
        statistics = numpy.float32([self.rng.normal(size=c), self.rng.uniform(0.3, 2, c)]).astype(float)
        layer.buffers = (*torch.tensor(statistics), torch.zeros(1, dtype=torch.float64))
        if h * w == 1:  # one value has no variance
            self.least_batch = 2
        return layer

    def add(self, kind):
        c, h, w = self.shape
        if kind == LINEAR:
            layer = self.add_product(kind, c, 1)
        elif kind == CONV:
            kernel = int(self.rng.integers(1, min(h, w, 5) + 1))
            layer = self.add_product(kind, c * kernel * kernel, kernel)
        elif kind == NORM:
            layer = self.add_norm()
        else:
            layer = {RELU: Relu, POOL: Pool, FLATTEN: Flatten, LOG_SOFTMAX: LogSoftmax}[kind](self.u)
        if kind == POOL:
            self.shape = c, h // 2, w // 2
        if kind == FLATTEN:
            self.shape, self.flat = (c * h * w, 1, 1), True
        self.layers.append(layer)

    def of(self, what):
        return [t for layer in self.layers for t in getattr(layer, what)]

    def __str__(self):
        return f"{self.input} {self.layers}" + (" exact" if self.exact else "") + (" bf16" if self.bf16 else "")


class Steps:
    """The forwards and backwards of a chain: the bytes that ask for them, and what is expected."""

    def __init__(self, chain):
        self.chain, self.rng = chain, chain.rng
        self.classes = chain.shape[0]
        self.input, self.expected = [], []

    def expect(self, name, values, variance=0.0):
        self.expected.append(Expected(name, values.detach().numpy(), variance))

    def draw(self, *shape, scale=1.0, shift=0.0):
        if self.chain.exact:
            largest = 300 if self.chain.bf16 else 3
            return numpy.float32(self.rng.integers(-largest, largest + 1, shape))
        return numpy.float32(self.rng.normal(shift, scale, shape))

    def step(self, number):
        self.number, chain = number, self.chain
        training = bool(self.rng.random() < 0.85)
        ending = int(self.rng.choice((D_OUTPUT, D_INPUT) if chain.exact else (D_OUTPUT, D_INPUT, D_INPUT, NLL, CROSS_ENTROPY, MSE)))
        n = int(self.rng.integers(min(chain.least_batch, chain.max_batch), chain.max_batch + 1))
        training = training and n >= chain.least_batch
        x = self.draw(n, *chain.input, scale=self.rng.choice((0.1, 1, 30)), shift=self.rng.choice((0, 0, 3)))
        self.input += [ints(n, training, ending if training else FORWARD), floats(x)]
        self.run(torch.tensor(x.astype(float)), training, ending)

    def run(self, x, training, ending):
        chain = self.chain
        if chain.flat and not isinstance(chain.layers[0], (Conv, Norm, Pool)) and chain.input[1:] == (1, 1):
            x = x.flatten(1)
        at, values, v = x.requires_grad_(), [], torch.zeros_like(x)
        for parameter in chain.of("parameters"):
            parameter.grad, parameter.variance = None, 0.0
        for layer in chain.layers:
            values.append(at)
            at, v = layer.forward(at, v, training)
            if at.requires_grad and not at.is_leaf:
                at.retain_grad()
        self.expect(f"output {self.number}", at, v)
        if training:
            self.backward(at, v, values, ending)
        for layer in chain.layers:
            if layer.kind == NORM:
                for buffer, variance in zip(layer.buffers, (layer.v_mean, layer.v_var, 0.0)):
                    self.expect(f"buffers {self.number} of {layer}", buffer.clone(), variance)

    def backward(self, y, v, values, ending):
        if ending >= NLL:
            v = self.loss(y, v, ending)
        else:
            d_output = self.draw(*y.shape)
            self.input.append(floats(d_output))
            y.backward(torch.tensor(d_output.astype(float)))
            v = torch.zeros_like(y)
        outputs = [*values[1:], y]
        for layer, x, y in zip(reversed(self.chain.layers), reversed(values), reversed(outputs)):
            v = layer.backward(y.grad, v, x.grad)
        if ending == D_INPUT:
            self.expect(f"d_input {self.number}", values[0].grad, v)
        for i, parameter in enumerate(self.chain.of("parameters")):
            self.expect(f"gradient {self.number} of parameter {i}", parameter.grad, parameter.variance)

    def targets(self, n):
        """Some, or all, are ignored, by a number that is a class or none."""
        targets = self.rng.integers(0, self.classes, n)
        ignored = int(self.rng.choice((-100, -1, 0, self.classes - 1, self.classes, 2**31, -2**40)))
        targets[self.rng.random(n) < self.rng.choice((0, 0.3, 1), p=(0.5, 0.4, 0.1))] = ignored
        return torch.tensor(targets), ignored

    def check_argmax(self, y, v):
        if self.classes > 1:
            best, at = y.detach().topk(2)
            if (best[:, 0] - best[:, 1] < SIGMAS * v.gather(1, at).sum(1).sqrt()).any():
                raise Ambiguous

    def loss(self, y, v, ending):
        u2, yd = U * U, y.detach()
        if ending == MSE:
            goal = numpy.float32(self.rng.normal(0, 2, y.shape))
            self.input += [int64s(0), floats(goal)]
            goal = torch.tensor(goal.astype(float))
            loss, difference, count = F.mse_loss(y, goal), yd - goal, y.numel()
            loss.backward()
            v_difference = v + 2 * u2 * difference**2
            v_loss = (2 * difference.abs() * v_difference.sqrt()).mean()**2  # a log_softmax in front: one error of all
            v, n_correct = 4 / count**2 * v_difference + 2 * u2 * y.grad**2, 0
        else:
            targets, ignored = self.targets(len(y))
            self.input += [int64s(ignored), int64s(*targets.tolist())]
            loss = (F.nll_loss if ending == NLL else F.cross_entropy)(y, targets, ignore_index=ignored)
            loss.backward()
            self.check_argmax(y, v)
            n_correct = (yd.argmax(1) == targets).sum().item()
            rows = (targets != ignored).nonzero().flatten()
            direct, log = torch.zeros_like(yd), LogSoftmax(U)
            direct[rows, targets[rows]] = -1 / max(1, len(rows))
            v_log = v if ending == NLL else log.forward(yd, v, True)[1]
            v_loss = v_log[rows, targets[rows]].sum() / max(1, len(rows))**2
            v = u2 * direct**2 if ending == NLL else log.backward(direct, u2 * direct**2, None)
        self.expect(f"loss {self.number}", loss, v_loss + 4 * u2 * loss.detach().nan_to_num()**2)
        self.expect(f"d_output {self.number}", y.grad, v)
        self.expect(f"correct {self.number}", torch.tensor(float(n_correct)))
        return v


def encode(chain, steps, n_steps, parameters, buffers):
    header = ints(CHAIN, len(chain.layers))
    for layer in chain.layers:
        header += ints(layer.kind, layer.n_in, layer.n_out, layer.kernel)
    header += ints(*chain.input, chain.max_batch, chain.bf16, steps.classes)
    return b"".join([header, parameters, buffers, ints(n_steps), *steps.input])


def all_floats(tensors):
    return b"".join(floats(t.detach().numpy()) for t in tensors)


def try_case(rng, chain):
    n_steps = int(rng.integers(1, 4))
    parameters = all_floats(chain.of("parameters"))
    buffers = all_floats(b for layer in chain.layers if layer.kind == NORM for b in layer.buffers[:2])
    steps = Steps(chain)
    for number in range(n_steps):
        steps.step(number)
    return Case(str(chain), encode(chain, steps, n_steps, parameters, buffers), steps.expected)


def chain_case(seed):
    """seed: a tuple of integers."""
    for attempt in range(1000):
        rng = numpy.random.default_rng((*seed, attempt))
        try:
            return try_case(rng, Chain(rng, rng.random() < 0.5))
        except Ambiguous:
            pass
    raise AssertionError(f"every chain of seed {seed} is ambiguous")
