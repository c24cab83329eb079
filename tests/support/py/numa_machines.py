"""Machines for --numa-binding, laid out as /sys and /proc/driver/nvidia in a folder, and what crun decides on them."""

import pathlib
import subprocess

import jobs


def ranges(numbers):
    return ",".join(map(str, sorted(numbers)))


class Machine:
    """sockets x nodes_per_socket x cores_per_node x threads; CPU numbers as Linux deals them out: first one thread of
    every core, then the next. gpu_nodes: the NUMA node of each GPU (-1: the firmware says nothing)."""

    def __init__(self, folder, sockets=1, nodes_per_socket=1, cores_per_node=4, threads=1, cores_per_cache=4,
                 gpu_nodes=(), hidden_gpus=(), memory_only_nodes=0):
        self.root = pathlib.Path(folder)
        self.gpu_nodes = list(gpu_nodes)
        n_nodes = sockets * nodes_per_socket
        n_cores = n_nodes * cores_per_node
        self.n_cpus = n_cores * threads
        self.nodes = {}
        for core in range(n_cores):
            node = core // cores_per_node
            siblings = [core + n_cores * t for t in range(threads)]
            first = node * cores_per_node + (core % cores_per_node) // cores_per_cache * cores_per_cache
            last = min(first + cores_per_cache, (node + 1) * cores_per_node)
            sharing = [c + n_cores * t for c in range(first, last) for t in range(threads)]
            for cpu in siblings:
                self.nodes.setdefault(node, []).append(cpu)
                self.write_cpu(cpu, node // nodes_per_socket, siblings, sharing)
        for node in range(n_nodes, n_nodes + memory_only_nodes):
            self.nodes[node] = []
        for node, cpus in self.nodes.items():
            self.write(f"sys/devices/system/node/node{node}/cpulist", ranges(cpus))
        self.write("sys/devices/system/node/possible", f"0-{len(self.nodes) - 1}" if len(self.nodes) > 1 else "0")
        for i, node in enumerate(self.gpu_nodes):
            self.write_gpu(i, node, i in hidden_gpus)

    def write(self, path, text):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    def write_cpu(self, cpu, package, siblings, sharing):
        at = f"sys/devices/system/cpu/cpu{cpu}"
        self.write(f"{at}/topology/physical_package_id", str(package))
        self.write(f"{at}/topology/thread_siblings_list", ranges(siblings))
        for index, (level, kind, cpus) in enumerate([(1, "Data", siblings), (1, "Instruction", siblings),
                                                     (2, "Unified", siblings), (3, "Unified", sharing)]):
            self.write(f"{at}/cache/index{index}/level", str(level))
            self.write(f"{at}/cache/index{index}/type", kind)
            self.write(f"{at}/cache/index{index}/shared_cpu_list", ranges(cpus))

    @staticmethod
    def address(i):
        return f"0000:{0x10 + 0x11 * i:02x}:00.0"

    def write_gpu(self, i, node, hidden):
        self.write(f"sys/bus/pci/devices/{self.address(i)}/numa_node", str(node))
        self.write(f"proc/driver/nvidia/gpus/{self.address(i)}/information",
                   f"Model: \t\t Big\nIRQ:   \t\t 16\nGPU UUID: \t GPU-{i:08d}-aaaa\nBus Type: \t PCIe\nDevice Minor: \t {i}\n")
        if not hidden:
            self.write(f"dev/nvidia{i}", "")

    def decide(self, n_workers, allowed=None, visible=None, environment=None):
        """{(mode, local rank): set of CPUs, or a sentence}, or a sentence."""
        probe = jobs.build_folder() / "tests" / "workers" / "numa_probe"
        args = [str(probe), str(self.root), ranges(allowed if allowed is not None else range(self.n_cpus)), str(n_workers)]
        out = subprocess.run(args + ([visible] if visible is not None else []), stdout=subprocess.PIPE, text=True, timeout=60,
                             env=environment).stdout
        if out.startswith("error: "):
            return out
        found = {}
        for line in out.splitlines():
            mode, rank, answer = line.split(" ", 2)
            found[mode, int(rank)] = answer if answer.startswith("error: ") else parse(answer)
        return found


def parse(text):
    cpus = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        cpus |= set(range(int(first), int(last or first) + 1))
    return cpus
