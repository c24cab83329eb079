"""--numa-binding: machines laid out in a folder, and a real launch on this one."""

import os
import pathlib
import subprocess

import pytest

import jobs
import numa_machines
from numa_machines import Machine

MODES = ("node", "socket", "exclusive", "core-complex")


def of_mode(found, mode):
    return [found[key] for key in sorted(found) if key[0] == mode]


def test_two_sockets_with_two_nodes_each(tmp_path):
    m = Machine(tmp_path, sockets=2, nodes_per_socket=2, cores_per_node=4, threads=2, cores_per_cache=2,
                gpu_nodes=[0, 0, 1, 2, 3, 3])
    found = m.decide(6)
    assert of_mode(found, "node") == [set(m.nodes[n]) for n in m.gpu_nodes]
    assert of_mode(found, "socket") == [set(m.nodes[n]) | set(m.nodes[n ^ 1]) for n in m.gpu_nodes]
    assert of_mode(found, "exclusive")[:3] == [{0, 1, 16, 17}, {2, 3, 18, 19}, set(m.nodes[1])]
    assert of_mode(found, "core-complex")[:3] == [{0, 1, 16, 17}, {2, 3, 18, 19}, {4, 5, 20, 21}]


def test_order_visibility_and_hidden_devices(tmp_path):
    m = Machine(tmp_path, sockets=2, gpu_nodes=[0, 1, 1, 0], hidden_gpus=[1])
    first, second = set(m.nodes[0]), set(m.nodes[1])
    assert of_mode(m.decide(3), "node") == [first, second, first]  # GPU 1 is not in this container
    assert of_mode(m.decide(2, visible="2,1"), "node") == [first, second]
    assert of_mode(m.decide(2, visible="GPU-00000002, GPU-00000000-aaaa"), "node") == [second, first]
    assert of_mode(m.decide(1, visible="MIG-GPU-00000002-aaaa/1/0"), "node") == [second]
    assert "no GPU for local rank 1, only 1" in of_mode(m.decide(2, visible="1,7"), "node")[1]
    assert "'MIG-1234-5678' in CUDA_VISIBLE_DEVICES" in m.decide(1, visible="MIG-1234-5678")


def test_firmware_that_says_nothing_means_node_0(tmp_path):
    m = Machine(tmp_path, gpu_nodes=[-1])
    assert of_mode(m.decide(1), "node") == [set(m.nodes[0])]


def test_workers_without_gpus_are_spread(tmp_path):
    m = Machine(tmp_path, sockets=2, nodes_per_socket=1, cores_per_node=4, cores_per_cache=2, memory_only_nodes=1)
    found = m.decide(4)
    assert of_mode(found, "node") == [set(m.nodes[i // 2]) for i in range(4)]
    assert of_mode(found, "exclusive") == [{0, 1}, {2, 3}, {4, 5}, {6, 7}]
    assert of_mode(found, "core-complex") == [{0, 1}, {2, 3}, {4, 5}, {6, 7}]
    assert of_mode(m.decide(2, allowed=m.nodes[1]), "node") == [set(m.nodes[1])] * 2
    assert of_mode(m.decide(4, visible=""), "node") == of_mode(found, "node")


def test_what_cannot_be_is_a_sentence(tmp_path):
    m = Machine(tmp_path / "small", cores_per_node=2, gpu_nodes=[0, 0, 0])
    assert "2 physical cores that crun may use, and 3 GPUs" in of_mode(m.decide(3), "exclusive")[0]
    m = Machine(tmp_path / "elsewhere", sockets=2, gpu_nodes=[1])
    assert "may use no CPU of NUMA node 1" in of_mode(m.decide(1, allowed=m.nodes[0]), "node")[0]
    m = Machine(tmp_path / "unlisted")
    assert "cannot be known" in m.decide(1, environment={**os.environ, "GPUS_COUNTED": "1"})
    (m.root / "sys/devices/system/node/possible").unlink()
    assert "does not report its NUMA nodes" in m.decide(1)


numa_here = pathlib.Path("/sys/devices/system/node/possible").exists() and not pathlib.Path("/proc/driver/nvidia").exists()


@pytest.mark.sanitize
@pytest.mark.skipif(not numa_here, reason="needs a machine with /sys/devices/system/node and without GPUs")
@pytest.mark.parametrize("mode", MODES)
def test_workers_of_a_launch_are_bound(mode):
    cpus = sorted(os.sched_getaffinity(0))
    p = jobs.run([jobs.crun(), f"--numa-binding={mode}", "--log-dir=/dev/null", "--no-python", "sh", "-c",
                  "grep Cpus_allowed_list /proc/self/status"], preexec_fn=lambda: os.sched_setaffinity(0, cpus[:1]))
    assert p.returncode == 0, p.stderr
    assert numa_machines.parse(p.stdout.split()[1]) == {cpus[0]}


tmpfs_works = subprocess.run(["unshare", "-m", "true"], stderr=subprocess.DEVNULL).returncode == 0


@pytest.mark.skipif(not tmpfs_works or len(os.sched_getaffinity(0)) < 2, reason="needs a mount namespace and two CPUs")
def test_a_launch_on_a_machine_with_two_nodes(tmp_path):
    """This machine, but its first two CPUs are on nodes of their own, and there are two GPUs, the first on node 1."""
    m = Machine(tmp_path / "m", sockets=2, cores_per_node=1, gpu_nodes=[1, 0])
    script = (f"mount --bind {m.root}/sys/devices/system/node /sys/devices/system/node && "
              f"mount -t tmpfs none /sys/bus/pci && cp -r {m.root}/sys/bus/pci/devices /sys/bus/pci/ && "
              f"mkdir {tmp_path}/driver && mount -t tmpfs none /proc/driver && cp -r {m.root}/proc/driver/nvidia /proc/driver/ && "
              f"mount -t tmpfs none /dev/shm && touch /dev/shm/x && "
              f"CUDA_VISIBLE_DEVICES=0,1 exec {jobs.crun()} --numa-binding=node --nproc-per-node=2 --log-dir=/dev/null -t1 "
              "--no-python grep Cpus_allowed_list /proc/self/status")
    devices = [pathlib.Path(f"/dev/nvidia{i}") for i in range(2)]
    if not all(d.exists() for d in devices):
        script = script.replace("mount -t tmpfs none /dev/shm && touch /dev/shm/x",
                                "mount -t tmpfs none /dev && touch /dev/nvidia0 /dev/nvidia1 && mknod -m 666 /dev/null c 1 3")
    p = jobs.run(["unshare", "-m", "sh", "-c", script], timeout=60)
    assert p.returncode == 0, p.stderr
    assert sorted(p.stdout.splitlines()) == ["[default0]:Cpus_allowed_list:\t1", "[default1]:Cpus_allowed_list:\t0"]
