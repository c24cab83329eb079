"""tests/support/py/history.py: it accepts what a store may do, and finds what it must not do."""

import random

import pytest

import history
from history import Operation


def op(client, kind, *arguments, begun, ended=None, result=None):
    return Operation(client, kind, "key", arguments, begun, ended, result)


ACCEPTED = {
    "a value is read while it is written": [
        op(0, "set", "a", begun=0, ended=9), op(1, "get", begun=1, ended=2, result="a")],
    "a request without a reply was executed": [
        op(0, "set", "a", begun=0, ended=1), op(1, "set", "b", begun=2), op(2, "get", begun=8, ended=9, result="b")],
    "a request without a reply was not executed": [
        op(0, "set", "a", begun=0, ended=1), op(1, "set", "b", begun=2), op(2, "get", begun=8, ended=9, result="a")],
    "a request without a reply is executed late": [
        op(0, "set", "a", begun=0, ended=1), op(1, "set", "b", begun=2), op(2, "get", begun=3, ended=4, result="a"),
        op(2, "get", begun=5, ended=6, result="b")],
    "additions at the same time, in any order": [
        op(0, "add", 1, begun=0, ended=9, result=3), op(1, "add", 2, begun=0, ended=9, result=2)],
    "an addition without a reply counts": [
        op(0, "add", 5, begun=0), op(1, "add", 1, begun=1, ended=2, result=1), op(1, "add", 1, begun=3, ended=4, result=7)],
    "two compare, one succeeds": [
        op(0, "set", "a", begun=0, ended=1), op(1, "compare_set", "a", "b", begun=2, ended=5, result="b"),
        op(2, "compare_set", "a", "c", begun=2, ended=5, result="b")],
    "compared before the key is there": [op(0, "compare_set", "a", "b", begun=0, ended=1, result="a")],
    "read before the key is there": [
        op(0, "get", begun=0, ended=9, result=""), op(1, "set", "a", begun=5, ended=8)],
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name):
    assert history.check(ACCEPTED[name]) == []


REFUSED = {
    "an acknowledged write is not read": (history.LOST, [
        op(0, "set", "a", begun=0, ended=1), op(0, "set", "b", begun=2, ended=3), op(1, "get", begun=4, ended=5, result="a")]),
    "a value comes back": (history.LOST, [
        op(0, "set", "a", begun=0, ended=1), op(1, "set", "b", begun=2), op(2, "get", begun=3, ended=4, result="b"),
        op(2, "get", begun=5, ended=6, result="a")]),
    "a key is not there any more": (history.LOST, [
        op(0, "set", "a", begun=0, ended=1), op(1, "get", begun=2, ended=3, result="")]),
    "a value that was not written": (history.LOST, [
        op(0, "set", "a", begun=0, ended=1), op(1, "get", begun=2, ended=3, result="b")]),
    "two compare, both succeed": (history.LOST, [
        op(0, "set", "a", begun=0, ended=1), op(1, "compare_set", "a", "b", begun=2, ended=5, result="b"),
        op(2, "compare_set", "a", "c", begun=2, ended=5, result="c"), op(2, "get", begun=6, ended=7, result="b")]),
    "an addition is lost": (history.LOST, [
        op(0, "add", 1, begun=0, ended=1, result=1), op(1, "add", 1, begun=2, ended=3, result=1)]),
    "an addition that a read does not show": (history.LOST, [
        op(0, "add", 2, begun=0, ended=1, result=2), op(1, "add", 0, begun=2, ended=3, result=0)]),
    "an addition is executed twice": (history.TWICE, [
        op(0, "add", 1, begun=0, ended=1, result=1), op(1, "add", 1, begun=2, ended=3, result=3)]),
    "one without a reply is executed twice": (history.TWICE, [
        op(0, "add", 1, begun=0), op(1, "add", 1, begun=2, ended=3, result=3)]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    what, operations = REFUSED[name]
    assert [fault.what for fault in history.check(operations)] == [what]


class Store:
    """Executes each request at a moment between request and reply. `fault` is what it does wrong, with one request in 20."""

    def __init__(self, rng, fault):
        self.rng, self.fault, self.value = rng, fault, history.MISSING

    def execute(self, operation):
        after = history.execute(self.value, operation.kind, operation.arguments)
        hit = self.fault and self.rng.random() < 0.05
        if not (hit and self.fault == "acknowledged, not executed"):
            self.value = after[0]
        if hit and self.fault == "executed twice" and operation.kind == "add":
            self.value += operation.arguments[0]
        return after[1]


def run_store(rng, kinds, fault, n_clients=5, n=300):
    """A history of clients that each wait for their reply; some have none, as their connection has ended."""
    store, operations, free_at = Store(rng, fault), [], [0.0] * n_clients
    plan = []
    for number in range(n):
        client = rng.randrange(n_clients)
        begun = free_at[client] + rng.random()
        moment = begun + rng.random()
        free_at[client] = moment + rng.random()
        kind = rng.choice(kinds)
        arguments = {"set": (f"v{number}",), "get": (), "add": (rng.randrange(3),),
                     "compare_set": (f"v{max(0, number - rng.randrange(1, 8))}", f"v{number}")}[kind]
        plan.append((moment, Operation(client, kind, "key", arguments, begun, free_at[client], None)))
    for _, operation in sorted(plan, key=lambda p: p[0]):
        result = store.execute(operation)
        if rng.random() < 0.02:
            operation = operation._replace(ended=None)
        operations.append(operation._replace(result=result))
    return operations


REGISTER, COUNTER = ("set", "get", "compare_set"), ("add",)


@pytest.mark.parametrize("kinds", [REGISTER, COUNTER])
def test_a_store_without_faults_is_accepted(kinds):
    for seed in range(40):
        assert history.check(run_store(random.Random(seed), kinds, None)) == [], f"seed {seed}"


@pytest.mark.parametrize("kinds, fault", [(REGISTER, "acknowledged, not executed"), (COUNTER, "acknowledged, not executed"),
                                          (COUNTER, "executed twice")])
def test_faults_of_a_store_are_found(kinds, fault):
    found = [seed for seed in range(20) if history.check(run_store(random.Random(seed), kinds, fault, n_clients=2))]
    assert len(found) >= 18, found  # what no later request reads, or one under way may explain, cannot be seen


def test_what_a_recorder_writes_is_read(tmp_path):
    path, times = tmp_path / "history", iter(range(100))
    recorder = history.Recorder(path, 7, lambda: next(times))
    recorder.call("set", "a", ["x"], lambda: None)
    assert history.read(path) == [Operation(7, "set", "a", ("x",), 0, None, None)]
    assert recorder.call("add", "b", [1], lambda: 1) == 1
    with pytest.raises(OSError):
        recorder.call("get", "a", [], lambda: (_ for _ in ()).throw(OSError))
    assert history.read(path) == [
        Operation(7, "set", "a", ("x",), 0, 2, None), Operation(7, "add", "b", (1,), 1, 2, 1), Operation(7, "get", "a", (), 3, None, None)]
    path.write_text(path.read_text() + '["begun", 9')
    assert len(history.read(path)) == 3
