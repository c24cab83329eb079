#!/usr/bin/env python3
"""What a training step of the MNIST network asks of a GPU, counted without one: graph nodes, bytes, multiply-adds, and
instructions, which are read from the machine code of the product kernels.

    sass.py [BUILD [GENERATION]]        (default: build 90)

The first table is that of BUILD/tests/unit/worker-runtime/gpu_step_model, with the instructions that all warps execute for
their slices. The second has for each product kernel: the instructions of its loop over slices (without the inner loop for a last,
shorter slice), how many of them multiply, and the ratio. A multiply-add is an FFMA of a thread, or an HMMA of a warp, which
does as many as 16x8x8 (tf32) or 16x8x16 (bf16). Needs cuobjdump: of the CUDA toolkit, or of PyTorch's triton."""

import collections
import glob
import os
import re
import shutil
import subprocess
import sys

OPERAND_NAMES = re.compile(r"\d(rows_of|columns_of|patches_by_pixel|patches_by_tap|weights_forward|weights_backward|"
                           r"output_patches|output_channels|store_\w+?)(?=[EN\d])")
PRECISIONS = ("exact", "tf32", "bf16")
WARPS = 4  # of a block


def find_cuobjdump():
    pattern = "/**/triton/backends/nvidia/bin/cuobjdump"
    places = [shutil.which("cuobjdump"), "/usr/local/cuda/bin/cuobjdump"]
    for top in [*sys.path, os.path.expanduser("~/.cache")]:
        places += glob.glob(top + pattern, recursive=True) if top and os.path.isdir(top) else []
    for place in places:
        if place and os.access(place, os.X_OK):
            return place
    sys.exit("sass.py: no cuobjdump: install the CUDA toolkit or PyTorch with triton")


def kernels(cuobjdump, file, generation):
    """(name, [(address, instruction)])"""
    out = subprocess.run([cuobjdump, "-sass", "-arch", f"sm_{generation}", file], stdout=subprocess.PIPE, text=True,
                         check=True).stdout
    for part in re.split(r"\n\s*Function : ", out)[1:]:
        code = re.findall(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?\w+\s+)?([A-Z][\w.]*)([^;]*);", part)
        yield part.split("\n", 1)[0].strip(), [(int(address, 16), name, rest) for address, name, rest in code]


def loops(code):
    """Of each loop, from the target of a backward branch to the branch."""
    for address, name, rest in code:
        target = re.search(r"0x([0-9a-f]+)", rest)
        if name.startswith("BRA") and target and int(target.group(1), 16) < address:
            yield [c for c in code if int(target.group(1), 16) <= c[0] <= address]


def loop_of(code):
    """The loop that holds most multiply-adds, without the loops in it."""
    found = list(loops(code))
    best = max(found, key=lambda body: (count(body, "FFMA", "HMMA"), -len(body)), default=[])
    for body in found:
        if len(body) < len(best) and set(body) <= set(best):
            best = [c for c in best if c not in body]
    return best


def count(code, *names):
    return sum(name.split(".")[0] in names for _, name, _ in code)


def products(build, cuobjdump, generation):
    """(precision, tile, operands, where the sums go, loop) of each product kernel."""
    for name in ("linear", "conv"):
        for mangled, code in kernels(cuobjdump, f"{build}/worker-runtime/kernels/cuda/{name}.o", generation):
            numbers = re.search(r"gemm_kernelILi(\d+)ELi(\d+)ELi(\d+)E", mangled)
            if not numbers:
                continue
            precision, m, n = map(int, numbers.groups())
            names = OPERAND_NAMES.findall(mangled)
            operands = [name for name in names if not name.startswith("store_")]
            yield PRECISIONS[precision], f"{m}x{n}", operands, names[len(operands):], loop_of(code)


def print_step(build, found):
    model = subprocess.run([f"{build}/tests/unit/worker-runtime/gpu_step_model"], stdout=subprocess.PIPE, text=True, check=True)
    total = 0
    for line in model.stdout.splitlines():
        fields = line.split()
        if len(fields) < 12 or not fields[6].isdigit():
            print(line + f"{'M instr.':>10}" * (fields[:1] == ["layer"]))
            continue
        names = set(fields[2].split(","))
        loop = next(loop for precision, tile, operands, _, loop in found
                    if (precision, tile, set(operands)) == (fields[3], fields[4], names))
        instructions = len(loop) * int(fields[6]) * WARPS
        total += instructions
        print(f"{line}{instructions / 1e6:>10.2f}")
    print(f"all products: {total / 1e6:.1f} million warp instructions in their loops")


def print_kernels(found, generation):
    print(f"\nsm_{generation}, the loop over slices of 16 of k, 128 threads")
    print(f"{'product':50} {'':6} {'tile':6} {'instr.':>7} {'FFMA':>6} {'HMMA':>6} {'LDS':>5} {'LDG':>5} {'integer':>8} {'per FMA':>8}")
    for precision, tile, operands, stores, body in found:
        kinds = collections.Counter(n.split(".")[0] for _, n, _ in body)
        integer = sum(n for kind, n in kinds.items() if kind in ("IMAD", "IADD3", "LEA", "SHF", "ISETP", "LOP3", "IMNMX"))
        multiplied = kinds["FFMA"] if precision == "exact" else kinds["HMMA"]
        ratio = f"{len(body) / multiplied:8.2f}" if multiplied else "       -"
        print(f"{' '.join(operands + stores)[:50]:50} {precision:6} {tile:6} {len(body):>7} {kinds['FFMA']:>6} {kinds['HMMA']:>6} "
              f"{kinds['LDS']:>5} {kinds['LDG']:>5} {integer:>8} {ratio}")


def print_column_sums(build, cuobjdump, generation):
    """How many loads the loop over rows begins before the first addition."""
    print("\ncolumn sums: loads of a thread before its first addition")
    for name in ("norm", "pool", "linear"):
        for mangled, code in kernels(cuobjdump, f"{build}/worker-runtime/kernels/cuda/{name}.o", generation):
            if "chunks_kernel" not in mangled:
                continue
            for body in loops(code):
                names = [n.split(".")[0] for _, n, _ in body]
                if "LDG" in names and "FADD" in names:
                    first = names.index("FADD")
                    print(f"{mangled[:70]:70} {names[:first].count('LDG'):>3} of {names.count('LDG')}")


def main():
    build, generation = (*sys.argv[1:], *("build", "90")[len(sys.argv) - 1:])
    cuobjdump = find_cuobjdump()
    found = list(products(build, cuobjdump, generation))
    print_step(build, found)
    print_kernels(found, generation)
    print_column_sums(build, cuobjdump, generation)


if __name__ == "__main__":
    main()
