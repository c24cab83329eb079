"""Cases for crw-number-cases (tests/interop/number_cases.c): their bytes, and the comparison of what comes back.

    CRUN_TESTS_SEED=SEED         the cases of an earlier run, which printed its seed
    CRUN_TESTS_SEED=SEED:NUMBER  one of its cases
"""

import itertools
import math
import os
import struct
import subprocess
import tempfile
import time
import typing

import numpy

CHAIN, OPTIMIZER, SAMPLER = range(3)
SIGMAS = 12.0
TINY = 1e-37  # below the smallest normal float


def ints(*values):
    return struct.pack(f"<{len(values)}i", *map(int, values))


def int64s(*values):
    return struct.pack(f"<{len(values)}Q", *(int(v) % 2**64 for v in values))


def doubles(*values):
    return struct.pack(f"<{len(values)}d", *values)


def floats(values):
    return numpy.ascontiguousarray(values, "<f4").tobytes()


class Expected(typing.NamedTuple):
    """Floats, with the variance of the error that each may have: a number or an array."""
    name: str
    values: numpy.ndarray
    variance: object = 0.0


class Case(typing.NamedTuple):
    text: str
    input: bytes
    expected: list


class Batch:
    """Cases one behind the other, and all that is expected of them as one array."""

    def __init__(self, cases, names):
        self.cases, self.names = cases, names
        self.input = b"".join(case.input for case in cases)
        self.owners = expected = [(f"{name}: {case.text}", e) for case, name in zip(cases, names) for e in case.expected]
        self.ends = numpy.cumsum([numpy.size(e.values) for _, e in expected])
        self.values = numpy.concatenate([numpy.ravel(e.values) for _, e in expected]).astype(float)
        variances = [numpy.broadcast_to(numpy.asarray(e.variance, float), numpy.shape(e.values)).ravel() for _, e in expected]
        self.allowed = SIGMAS * numpy.sqrt(numpy.concatenate(variances))
        self.allowed[numpy.abs(self.values) < TINY] += TINY
        assert numpy.isfinite(self.allowed).all(), names

    def owner(self, i):
        return self.owners[numpy.searchsorted(self.ends, i, "right")]

    def compare(self, output):
        """A sentence for each case that differs, the largest error as a share of the allowed one, its case."""
        got = numpy.frombuffer(output, "<f4")
        if got.size != self.values.size:
            return [f"{self.owners[0][0]}: {got.size} results instead of {self.values.size}"], math.inf, self.owners[0][0]
        with numpy.errstate(invalid="ignore", divide="ignore"):
            error = numpy.abs(got - self.values)
            error[(got == self.values) | (numpy.isnan(got) & numpy.isnan(self.values))] = 0
            share = numpy.nan_to_num(error / self.allowed, nan=0.0, posinf=math.inf)
        failures = {}
        for i in numpy.flatnonzero(~(error <= self.allowed)):
            text, expected = self.owner(i)
            failures.setdefault(text, f"{text}: {expected.name}: {got[i]:.9g} instead of {self.values[i]:.9g} (+- {self.allowed[i]:.2g})")
        worst = int(share.argmax())
        return list(failures.values()), share[worst], ": ".join([self.owner(worst)[0], self.owner(worst)[1].name])


def compute(command, batch):
    """The bytes that crw-number-cases writes."""
    with tempfile.TemporaryFile() as file:
        file.write(batch.input)
        file.seek(0)
        p = subprocess.run(command, stdin=file, capture_output=True, timeout=600)
    assert p.returncode == 0, f"{command}: exit code {p.returncode}: {p.stderr.decode()}"
    return p.stdout


def commands(driver):
    """Of each table of this processor, from the plain one to the best."""
    tables = subprocess.run([driver], check=True, capture_output=True, text=True, timeout=60).stdout.split()
    return {table: [driver, table] for table in tables}


class Campaign:
    """Cases number 0, 1, ... of a seed, in batches, each with every table that has not had its number of cases."""
    BATCH = 50

    def __init__(self, make, seed):
        seed, _, number = str(seed).partition(":")
        self.make, self.seed, self.first = make, int(seed), int(number or 0)
        self.done, self.failures, self.worst = {}, [], (0.0, "")
        if number:
            self.BATCH = 1

    def run(self, commands, counts, seconds=math.inf):
        """commands and counts (of cases): by table."""
        until = time.monotonic() + seconds
        numbers = iter(range(self.first, self.first + max(counts.values())))
        while time.monotonic() < until:
            batch = [(self.seed, number) for number in itertools.islice(numbers, self.BATCH)]
            if not batch:
                break
            batch = Batch([self.make(seed) for seed in batch], [f"{seed}:{number}" for seed, number in batch])
            for table, command in commands.items():
                if self.done.get(table, 0) < counts[table]:
                    self.done[table] = self.done.get(table, 0) + len(batch.cases)
                    self.compare(table, command, batch)
            if self.BATCH == 1:
                break

    def compare(self, table, command, batch):
        output = compute(command, batch)
        if len(output) != 4 * batch.values.size and len(batch.cases) > 1:
            for case, name in zip(batch.cases, batch.names):  # which of them?
                self.compare(table, command, Batch([case], [name]))
            return
        failures, *worst = batch.compare(output)
        self.failures += [f"{table}, seed {failure}" for failure in failures]
        self.worst = max(self.worst, (float(worst[0]), f"{table}, seed {worst[1]}"))

    def __str__(self):
        done = ", ".join(f"{table} {count}" for table, count in self.done.items())
        return (f"{self.make.__name__}, seed {self.seed}: {done}; {len(self.failures)} wrong; "
                f"the largest error is {self.worst[0]:.2f} of the allowed one")


def seed_of_run():
    return os.environ.get("CRUN_TESTS_SEED") or str(int.from_bytes(os.urandom(4), "little"))
