"""The wheel crun-launch, made of the programs of this build, in an empty environment; then what it brings to PyTorch."""

import os
import pathlib
import sys

import pytest

torch = pytest.importorskip("torch")

import jobs
import nodes as lib
from crund import Crund

SITE = pathlib.Path(torch.__file__).parents[1]
RANKS = 'import os, sys; print("RANK", os.environ["RANK"], sys.prefix, flush=True)\n'
TRAIN = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
sum_ = torch.ones(1)
dist.all_reduce(sum_)
print("SUM", int(sum_), "STORE", os.environ["MASTER_PORT"], flush=True)
if os.path.exists(sys.argv[1]):
    sys.exit(0)
if os.environ["RANK"] == "0":
    open(sys.argv[1], "w").close()
    os._exit(3)
dist.barrier()
"""


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    """An environment with the wheel and nothing else: its bin folder."""
    folder = tmp_path_factory.mktemp("wheel")
    p = jobs.run([sys.executable, jobs.ROOT / "packaging" / "build-wheel", "--build", jobs.build_folder(), "--out", folder])
    assert p.returncode == 0, p.stdout + p.stderr
    wheel, = folder.glob("*.whl")
    # pip of this Python installs into it: to copy pip takes longer than all tests.
    for words in (["-m", "venv", "--without-pip", folder / "env"],
                  ["-m", "pip", "--python", folder / "env" / "bin" / "python", "install", "-q", "--no-index", wheel]):
        p = jobs.run([sys.executable, *words])
        assert p.returncode == 0, p.stdout + p.stderr
    return folder / "env" / "bin"


def plain_environment(**more):
    env = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")}
    return {**env, **lib.QUIET, **more}


def test_what_is_installed(env):
    assert {"crun", "crun-launch", "crunctl", "crund"} <= set(os.listdir(env))
    assert not any(name.startswith("torchrun") for name in os.listdir(env)), "that name is torch's"
    for page in ("man1/crun.1", "man1/crun-launch.1", "man1/crunctl.1", "man8/crund.8"):
        assert (env.parent / "share" / "man" / page).exists()
    for name in ("crun", "crun-launch", "crunctl", "crund"):
        p = jobs.run([env / name, "--version"])
        assert p.returncode == 0 and p.stdout.startswith("cru")


def test_two_ranks_in_an_empty_environment(env, tmp_path):
    """The Python of the environment, although that is not active."""
    (tmp_path / "ranks.py").write_text(RANKS)
    p = jobs.run([env / "crun-launch", "--nproc-per-node=2", tmp_path / "ranks.py"], env=plain_environment())
    assert p.returncode == 0, p.stderr
    assert sorted(p.stdout.splitlines()) == [f"RANK {rank} {env.parent}" for rank in (0, 1)]


def test_alias(env, tmp_path):
    p = jobs.run([env / "python", "-m", "crun_launch", "alias", tmp_path / "bin"])
    assert p.returncode == 0 and p.stdout == f'export PATH="{tmp_path}/bin:$PATH"\n'
    assert os.path.realpath(tmp_path / "bin" / "torchrun") == os.path.realpath(env / "crun")
    (tmp_path / "ranks.py").write_text(RANKS)
    p = jobs.run(["torchrun", "--nproc_per_node", "2", tmp_path / "ranks.py"], env=plain_environment(PATH=f"{tmp_path}/bin:{os.environ['PATH']}"))
    assert p.returncode == 0 and len(p.stdout.splitlines()) == 2, p.stderr
    (tmp_path / "taken" / "torchrun").mkdir(parents=True)
    p = jobs.run([env / "python", "-m", "crun_launch", "alias", tmp_path / "taken"])
    assert p.returncode == 1 and "is no link" in p.stderr


def test_store(env):
    """Ends with its process, however that ends."""
    code = ("import crun_launch, os\nfrom torch.distributed import TCPStore\n"
            "with crun_launch.Store() as store:\n"
            "    store.set('a', 'b')\n    other = TCPStore(store.host, store.port, is_master=False)\n"
            "    assert other.get('a') == b'b'\n    first = store.pid\n"
            "assert not os.path.exists(f'/proc/{first}')\n"
            "store = crun_launch.Store()\nprint(store.pid, flush=True)\nos.kill(os.getpid(), 9)\n")
    p = jobs.run([env / "python", "-c", code], env=plain_environment(PYTHONPATH=str(SITE)))
    assert p.returncode == -9 and p.stderr == "", p.stderr

    def has_ended():
        try:
            return pathlib.Path(f"/proc/{int(p.stdout)}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    jobs.wait_for(has_ended, 10)


def test_rendezvous_of_torchrun(env, tmp_path):
    """Two agents of an unmodified torchrun; a worker fails once, and both go on with an empty store."""
    (tmp_path / "train.py").write_text(TRAIN)
    with Crund(jobs.build_folder()) as daemon, lib.Nodes(tmp_path) as nodes:
        for _ in range(2):
            nodes.start([env / "python", "-m", "torch.distributed.run", "--nnodes=2", "--max-restarts=1", "--rdzv-backend=crun",
                         f"--rdzv-endpoint=127.0.0.1:{daemon.port}", "--rdzv-id=job", tmp_path / "train.py", tmp_path / "failed"],
                        env={"PYTHONPATH": str(SITE)})
        assert nodes.codes() == [0, 0], nodes.texts()
        lines = [line for node in nodes for line in node.text().splitlines() if line.startswith("SUM")]
        assert len(lines) == 4 and all(line.startswith("SUM 2 ") for line in lines) and len(set(lines)) == 2
