"""Random chains of layers, optimizers and samplers beside PyTorch: the full counts of tests/interop/test_numbers_vs_torch.py."""

import argparse
import subprocess
import sys
import tempfile

import torch

import jobs
import number_cases

sys.path.append(str(jobs.ROOT / "tests/interop"))  # torch_vectors
from number_chains import chain_case
from number_steps import optimizer_case, sampler_case


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--chains", type=int, default=20000, help="for each of AVX2 and AVX-512")
    p.add_argument("--plain", type=int, default=5000, help="for the plain table and for SSE2 (on arm64 NEON)")
    p.add_argument("--neon", type=int, default=500, help="for NEON under qemu")
    p.add_argument("--optimizers", type=int, default=400)
    p.add_argument("--samplers", type=int, default=3000)
    p.add_argument("--seed", default=number_cases.seed_of_run())
    a = p.parse_args()
    torch.set_num_threads(1)
    commands = number_cases.commands(str(jobs.build_folder() / "tests/interop/crw-number-cases"))
    chains = dict.fromkeys(commands, a.chains) | {"ref": a.plain, "base": a.plain}
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        if a.neon:
            subprocess.run([jobs.SOAK / "number_cases_arm64", f"{folder}/arm64"], cwd=jobs.ROOT, check=True)
            commands["neon"], chains["neon"] = ["qemu-aarch64", f"{folder}/arm64", "base"], a.neon
        for make, counts in ((optimizer_case, dict.fromkeys(commands, a.optimizers)),
                             (sampler_case, dict.fromkeys(commands, a.samplers)), (chain_case, chains)):
            campaign = number_cases.Campaign(make, a.seed)
            campaign.run(commands, counts)
            print(campaign, *campaign.failures, sep="\n", flush=True)
            failed += len(campaign.failures)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
