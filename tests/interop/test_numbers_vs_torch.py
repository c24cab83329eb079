"""Random chains of layers, optimizers and samplers beside PyTorch, with every table of kernels of this processor.

tests/soak numbers has the full counts; tests/support/py/number_cases.py tells how a run is repeated.
"""

import pytest

torch = pytest.importorskip("torch")

import number_cases
from number_chains import chain_case
from number_steps import optimizer_case, sampler_case


@pytest.mark.parametrize("make, seconds", [(chain_case, 26), (optimizer_case, 4), (sampler_case, 3)])
def test_random_cases(build, make, seconds, capsys):
    torch.set_num_threads(1)
    commands = number_cases.commands(str(build / "tests/interop/crw-number-cases"))
    campaign = number_cases.Campaign(make, number_cases.seed_of_run())
    campaign.run(commands, dict.fromkeys(commands, 10**6), seconds)
    with capsys.disabled():
        print(f"\n{campaign}")
    assert not campaign.failures, "\n".join([str(campaign), *campaign.failures[:20]])
    assert min(campaign.done.values()) >= campaign.BATCH
