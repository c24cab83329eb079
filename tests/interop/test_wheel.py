"""The wheel crun-launch, made of the programs of this build, in an empty environment; then what it brings to PyTorch."""

import os
import pathlib
import sys

import pytest

torch = pytest.importorskip("torch")

import fabric as fabrics
import jobs
import nodes as lib
from crund import Crund
from job_secret import write_secret
from strict import skip_if

SITE = pathlib.Path(torch.__file__).parents[1]
RANKS = """import os, sys; sys.stdout.write(f"RANK {os.environ['RANK']} {sys.prefix}\\n")
"""  # one write: a whole line
TRAIN = """
import os, sys, torch, torch.distributed as dist
has_failed = os.path.exists(sys.argv[1])
dist.init_process_group("gloo")
sum_ = torch.ones(1)
dist.all_reduce(sum_)
sys.stdout.write(f"SUM {int(sum_)} STORE {os.environ['MASTER_PORT']}\\n")
dist.barrier()
if has_failed:
    sys.exit(0)
if os.environ["RANK"] == "0":
    open(sys.argv[1], "w").close()
    os._exit(3)
dist.barrier()
"""
ACCELERATE = """
import sys, torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
total = accelerator.reduce(torch.ones(1), "sum")
sys.stdout.write(f"RANK {accelerator.process_index} OF {accelerator.num_processes} SUM {int(total)}\\n")
"""


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    """An environment with the wheel and nothing else: its bin folder."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "portable").mkdir()
    for machine in (os.uname().machine, "other"):
        (folder / "portable" / f"crun-{machine}").write_text(machine)
    p = jobs.run([sys.executable, jobs.ROOT / "packaging" / "build-wheel", "--build", jobs.build_folder(), "--out", folder,
                  "--portable", folder / "portable"])
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
    assert os.listdir(env.parent / "lib/crun/portable") == ["crun-other"], "for hosts of its own type the wheel's crun is the build"
    for page in ("man1/crun.1", "man1/crun-launch.1", "man1/crunctl.1", "man8/crund.8"):
        assert (env.parent / "share" / "man" / page).exists()
    for name in ("crun", "crun-launch", "crunctl", "crund"):
        p = jobs.run([env / name, "--version"])
        assert p.returncode == 0 and p.stdout.startswith("cru")


def test_stacks_are_an_extra(env):
    """py-spy is installed when it is asked for, and not without."""
    path, = env.parent.glob("lib/python*/site-packages/crun_launch-*.dist-info/METADATA")
    words = path.read_text().split("\n\n")[0].splitlines()
    assert "Provides-Extra: stacks" in words
    assert [w for w in words if w.startswith("Requires-Dist:")] == ['Requires-Dist: py-spy>=0.4; extra == "stacks"']


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


STORE_USER = """
import os, sys, time
from datetime import timedelta
from torch.distributed import TCPStore
store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=timedelta(seconds=30))
store.set("rank" + os.environ["RANK"], "here")
store.wait(["rank0", "rank1"])
sys.stdout.write(f"STORE {os.environ['MASTER_ADDR']} {os.environ['MASTER_PORT']}.\\n")
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""
READ_A_KEY = """
import sys
from crund import Client, Closed
try:
    with Client(sys.argv[1], int(sys.argv[2])) as client:
        print("READ", client.get("/rank0"))  # TCPStore puts the stroke before each key
except (Closed, OSError):
    print("CLOSED")
"""


def test_job_secret_under_torchrun(env, tmp_path):
    """Nodes with the secret meet; one without it is refused, and its host reads nothing from the store of the round."""
    skip_if(fabrics.missing())
    secret, end, etc = tmp_path / "secret", tmp_path / "end", tmp_path / "etc"
    write_secret(secret)
    (tmp_path / "worker.py").write_text(STORE_USER)
    etc.mkdir()
    with fabrics.Fabric(3) as fabric, lib.Nodes(tmp_path) as nodes:
        (etc / "hosts").write_text("".join(f"{fabric.address(host)} {fabric.hostname(host)}\n" for host in range(3)))

        def start(host, conf="last_call_timeout=60", **more):
            return nodes.start(
                [env / "python", "-m", "torch.distributed.run", "--nnodes=2", "--rdzv-backend=crun",
                 f"--rdzv-endpoint={fabric.address(0)}:29400", "--rdzv-id=job", f"--rdzv-conf={conf}",
                 f"--local-addr={fabric.address(host)}", tmp_path / "worker.py", end],
                prefix=fabric.prefix_with_etc(host, etc), env={"PYTHONPATH": str(SITE), "HOME": str(tmp_path), **more})

        def read(host):
            return jobs.run([*fabric.prefix(host), sys.executable, "-c", READ_A_KEY, address, port],
                            env={**os.environ, "PYTHONPATH": str(jobs.ROOT / "tests" / "support" / "py")}).stdout

        members = [start(host, CRUN_SECRET_FILE=str(secret)) for host in (0, 1)]
        other = start(2, conf="join_timeout=60,is_host=false")
        address, port = [node.wait_for_match(r"STORE (\S+) (\d+)\.\n") for node in members][0].groups()
        assert read(1) == "READ b'here'\n" and read(2) == "CLOSED\n"
        assert other.wait() == 1 and "this job has a secret, and this crun has none" in other.text(), other.text()
        end.touch()
        assert [node.wait() for node in members] == [0, 0], nodes.texts()
        assert not any("this job is open" in node.text() for node in members)


def test_accelerate_launch(env, tmp_path):
    """Two machines; that of rank 0 serves the rendezvous, as accelerate refuses a port on which something listens there."""
    accelerate = pytest.importorskip("accelerate", reason="accelerate is no part of the tests' environment: pip install accelerate")
    site = pathlib.Path(accelerate.__file__).parents[1]
    (tmp_path / "train.py").write_text(ACCELERATE)
    port = lib.free_port()
    with lib.Nodes(tmp_path) as nodes:
        for rank in range(2):
            nodes.start([env / "python", "-m", "accelerate.commands.accelerate_cli", "launch", "--multi_gpu", "--num_machines=2",
                         "--num_processes=2", f"--machine_rank={rank}", "--main_process_ip=127.0.0.1",
                         f"--main_process_port={port}", "--rdzv_backend=crun", "--mixed_precision=no", "--dynamo_backend=no",
                         tmp_path / "train.py"], env={"PYTHONPATH": f"{site}:{SITE}", "HOME": str(tmp_path)})
            jobs.wait_for(lambda: lib.can_connect(port), 60)
        assert nodes.codes() == [0, 0], nodes.texts()
        sums = sorted(line for node in nodes for line in node.text().splitlines() if line.startswith("RANK"))
        assert sums == ["RANK 0 OF 2 SUM 2", "RANK 1 OF 2 SUM 2"], nodes.texts()
