"""Whether a store that several clients use at the same time has done what it has acknowledged: a checker for linearizability.

    faults = history.check(operations)

Every operation has the time of its request and that of its reply. There has to be an order of all operations of a key in which each has the
result that its client has read, and which puts no operation before one that had ended when it began. An operation without a reply
may have been executed at any time after its request, or not at all.

The operations are taken in the order of their times. A *configuration* is a value of the key and the set of those operations under way that
have been executed. When an operation ends, all configurations are kept in which it has been executed with its result; when none remains, there
is no such order. (Lowe, "Testing for linearizability", 2017: just-in-time linearization.) With unique values and few clients there are few
configurations.
"""

import collections
import json

Operation = collections.namedtuple("Operation", "client kind key arguments begun ended result")
Fault = collections.namedtuple("Fault", "key what operation")

MISSING = None  # the value of a key that was not written
LOST, TWICE, OTHER = "an acknowledged write is lost", "an addition was executed more than once", "no order explains the result"


def execute(value, kind, arguments):
    """(new value, result)."""
    if kind == "set":
        return arguments[0], None
    if kind == "add":
        total = int(value or 0) + arguments[0]
        return total, total
    if kind == "get":
        return value, value or ""  # PyTorch's client asks for a key when it is there
    expected, desired = arguments  # "compare_set"; the store's client is not to expect an empty value
    return (desired, desired) if value == expected else (value, expected if value is MISSING else value)


def has_effect(operation):
    return operation.kind in ("set", "compare_set") or operation.kind == "add" and operation.arguments[0] != 0


def executed(configurations, pending, number):
    """The configurations behind those given, in which this operation has been executed, without it."""
    found, seen, stack = set(), set(configurations), list(configurations)
    while stack:
        value, done = stack.pop()
        if number in done:
            found.add((value, done - {number}))
            continue
        for other, operation in pending.items():
            if other in done:
                continue
            after = execute(value, operation.kind, operation.arguments)
            if operation.ended is not None and operation.kind != "set" and after[1] != operation.result:
                continue
            configuration = after[0], done | {other}
            if configuration not in seen:
                seen.add(configuration)
                stack.append(configuration)
    return found


def name_fault(configurations, operation):
    if operation.kind != "add":
        return LOST if operation.kind in ("get", "compare_set") else OTHER
    totals = [int(value or 0) for value, _ in configurations]
    before = operation.result - operation.arguments[0]
    return LOST if before < min(totals) else TWICE if before > max(totals) else OTHER


def check_key(operations):
    """The first fault of the operations of one key, or None."""
    pending, configurations, moments = {}, {(MISSING, frozenset())}, []
    for number, operation in enumerate(operations):
        if operation.ended is None and not has_effect(operation):
            continue
        moments.append((operation.begun, 0, number))
        if operation.ended is not None:
            moments.append((operation.ended, 1, number))
    for _, is_end, number in sorted(moments):
        operation = operations[number]
        if not is_end:
            pending[number] = operation
            continue
        possible = executed(configurations, pending, number)
        if not possible:
            return Fault(operation.key, name_fault(configurations, operation), operation)
        del pending[number]
        configurations = possible
    return None


def check(operations):
    """The first fault of each key."""
    keys = {}
    for operation in operations:
        keys.setdefault(operation.key, []).append(operation)
    return [fault for fault in (check_key(of_key) for of_key in keys.values()) if fault]


class Recorder:
    """Writes the operations of one connection as lines: one for the request and one for the reply, so that a process that is killed leaves
    what it has asked for. A SET has no reply: it is acknowledged by the next reply on its connection."""

    def __init__(self, path, client, clock):
        self.out = open(path, "a", buffering=1)  # noqa: SIM115
        self.client, self.clock, self.n, self.unanswered = client, clock, 0, []

    def write(self, *record):
        self.out.write(json.dumps(record) + "\n")

    def call(self, kind, key, arguments, function):
        """Executes the function, which returns the reply; a SET returns None."""
        self.n += 1
        number = self.n
        self.write("begun", number, self.client, kind, key, arguments, self.clock())
        result = function()
        if kind == "set":
            self.unanswered.append(number)
            return None
        at = self.clock()
        for earlier in self.unanswered:
            self.write("ended", earlier, at, None)
        self.write("ended", number, at, result)
        self.unanswered = []
        return result


def read(path):
    """The operations that a Recorder has written; the last line may be incomplete."""
    begun, ended = {}, {}
    with open(path) as lines:
        for line in lines:
            if not line.endswith("\n"):
                break
            record = json.loads(line)
            if record[0] == "begun":
                begun[record[1]] = record[2:]
            else:
                ended[record[1]] = record[2:]
    return [Operation(client, kind, key, tuple(arguments), at, *ended.get(number, (None, None)))
            for number, (client, kind, key, arguments, at) in begun.items()]
