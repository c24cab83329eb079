"""--numa-binding decides as torchrun's own code does: both look at the same random machines."""

import builtins
import os
import random
import types

import pytest

from numa_machines import Machine


from torch.numa import binding

MODES = [mode.value for mode in binding.AffinityMode]


def let_torch_look_at(monkeypatch, machine, allowed):
    real_open, real_listdir = builtins.open, os.listdir
    below = lambda path: f"{machine.root}{path}" if str(path).startswith("/sys/") else path
    monkeypatch.setattr(builtins, "open", lambda path, *args, **more: real_open(below(path), *args, **more))
    monkeypatch.setattr(os, "listdir", lambda path: real_listdir(below(path)))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(allowed))
    monkeypatch.setattr(binding.torch.cuda, "device_count", lambda: len(machine.gpu_nodes))
    monkeypatch.setattr(binding.torch.cuda, "get_device_properties", lambda i: types.SimpleNamespace(
        pci_domain_id=0, pci_bus_id=int(machine.address(i).split(":")[1], 16), pci_device_id=0))


def torch_decides(mode, gpu):
    """A set of CPUs, or an exception."""
    try:
        cpus = binding._get_logical_cpus_to_bind_to(
            gpu_index=gpu, numa_options=binding.NumaOptions(affinity_mode=binding.AffinityMode(mode)))
    except (RuntimeError, ValueError, ZeroDivisionError) as e:
        return e
    return cpus or RuntimeError("empty")


def random_machine(folder, r):
    sockets, nodes = r.choice([1, 1, 2, 2, 4]), r.choice([1, 1, 2, 4])
    cores = r.randint(1, 12)
    gpus = [r.randrange(sockets * nodes) for _ in range(r.randint(1, 6))]
    return Machine(folder, sockets, nodes, cores, r.choice([1, 2]), r.randint(1, cores), gpus)


def test_same_cpus(tmp_path):
    r = random.Random(20261121)
    compared = refused = 0
    for i in range(40):
        machine = random_machine(tmp_path / str(i), r)
        allowed = set(range(machine.n_cpus))
        if i % 2:
            allowed = set(r.sample(sorted(allowed), r.randint(1, len(allowed))))
        ours = machine.decide(len(machine.gpu_nodes), allowed)
        with pytest.MonkeyPatch.context() as patch:
            let_torch_look_at(patch, machine, allowed)
            theirs = {(mode, gpu): torch_decides(mode, gpu) for mode in MODES for gpu in range(len(machine.gpu_nodes))}
        for key, answer in theirs.items():
            if isinstance(answer, set):
                assert ours[key] == answer, (i, key)
                compared += 1
            elif isinstance(answer, RuntimeError) or not set(machine.nodes[machine.gpu_nodes[key[1]]]) & allowed:
                assert isinstance(ours[key], str), (i, key, answer)
                refused += 1
            else:  # torchrun stumbles over a node with no usable CPU that has nothing to do with it
                assert key[0] == "socket", (i, key, answer)
    assert compared > 200 and refused > 10, (compared, refused)
