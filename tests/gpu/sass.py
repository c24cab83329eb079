#!/usr/bin/env python3
"""How many instructions the products of the CUDA kernels take for each multiply-add, read from their machine code.

    sass.py [BUILD [GENERATION]]        (default: build 90)

For each product kernel: the instructions of its loop over slices (from the first multiply-add to the last backward branch
around it), how many of them multiply, and the ratio. A multiply-add is an FFMA of a thread, or an HMMA of a warp, which does as
many as 16x8x8 (tf32) or 16x8x16 (bf16). Needs cuobjdump: of the CUDA toolkit, or of PyTorch's triton."""

import collections
import glob
import os
import re
import shutil
import subprocess
import sys

OPERAND_NAMES = re.compile(r"\d+(rows_of|columns_of|patches_by_pixel|patches_by_tap|weights_forward|weights_backward|"
                           r"output_patches|output_channels|store_\w+?|to_workspace)(?=[EN\d])")
PRECISIONS = ("exact", "tf32", "bf16")


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


def loop_of(code):
    """The instructions between the target of a backward branch and the branch, for the one that holds most multiply-adds."""
    best = []
    for address, name, rest in code:
        target = re.search(r"0x([0-9a-f]+)", rest)
        if name.startswith("BRA") and target and int(target.group(1), 16) < address:
            body = [c for c in code if int(target.group(1), 16) <= c[0] <= address]
            if (count(body, "FFMA", "HMMA"), -len(body)) > (count(best, "FFMA", "HMMA"), -len(best)):
                best = body
    return best


def count(code, *names):
    return sum(name.split(".")[0] in names for _, name, _ in code)


def title(mangled):
    precision = re.search(r"gemm_kernelILi(\d)E", mangled)
    return PRECISIONS[int(precision.group(1))], " ".join(OPERAND_NAMES.findall(mangled)) or mangled[:60]


def main():
    build, generation = (*sys.argv[1:], *("build", "90")[len(sys.argv) - 1:])
    cuobjdump = find_cuobjdump()
    print(f"sm_{generation}, the loop over slices of 16 of k, a tile of 64 x 64 of 128 threads")
    print(f"{'product':60} {'':6} {'instr.':>7} {'FFMA':>6} {'HMMA':>6} {'LDS':>5} {'LDG':>5} {'integer':>8} {'per FMA':>8}")
    for name in ("linear", "conv"):
        for mangled, code in kernels(cuobjdump, f"{build}/worker-runtime/kernels/cuda/{name}.o", generation):
            if "gemm_kernel" not in mangled:
                continue
            precision, operands = title(mangled)
            body = loop_of(code)
            kinds = collections.Counter(n.split(".")[0] for _, n, _ in body)
            integer = sum(n for kind, n in kinds.items() if kind in ("IMAD", "IADD3", "LEA", "SHF", "ISETP", "LOP3", "IMNMX"))
            multiplied = kinds["FFMA"] if precision == "exact" else kinds["HMMA"]
            ratio = f"{len(body) / multiplied:8.2f}" if multiplied else "       -"
            print(f"{operands[:60]:60} {precision:6} {len(body):>7} {kinds['FFMA']:>6} {kinds['HMMA']:>6} {kinds['LDS']:>5} "
                  f"{kinds['LDG']:>5} {integer:>8} {ratio}")


if __name__ == "__main__":
    main()
