"""crun_launch.checkpoint: state in crun's memory for jobs of any parallelism, beside DCP itself. crun's side is a fake (fake_blocks)."""

import contextlib
import difflib
import io
import os
import pathlib
import pickle
import random
import signal
import subprocess
import sys
import time
import zlib

import pytest
import torch
import torch.distributed.checkpoint as dcp

import fake_blocks
import forked_ranks
import jobs

sys.path.insert(0, str(jobs.ROOT / "python"))
from crun_launch import checkpoint

N = 4


# ---- one rank, in this process

@contextlib.contextmanager
def crun(**options):
    """A fake crun, and a function that begins a generation: a worker of one rank."""
    fake, generations = fake_blocks.FakeCrun(1, **options), iter(range(1000))
    before = dict(os.environ)

    def begin():
        os.environ.update(fake.environment(0) | {"CRUN_GENERATION": str(next(generations)), "RANK": "0", "WORLD_SIZE": "1"})
        checkpoint._blocks.cache_clear()

    begin()
    try:
        yield fake, begin
    finally:
        os.environ.clear()
        os.environ.update(before)
        checkpoint._blocks.cache_clear()
        fake.close()


class Job:
    """A network with running statistics, an optimizer and a schedule."""

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.BatchNorm1d(20), torch.nn.Dropout(0.2), torch.nn.Linear(20, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)

    def parts(self):
        return {"model": self.model, "optim": self.optimizer, "schedule": self.schedule}

    def train(self, steps):
        losses = {}
        for step in steps:
            loss = self.model(torch.randn(8, 10)).pow(2).mean() + random.random()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
            losses[step] = loss.item()
        return losses

    def state(self):
        moments = {n: self.optimizer.state[p] for n, p in self.model.named_parameters()}
        return {"model": self.model.state_dict(), "moments": moments, "schedule": self.schedule.state_dict()}


def is_same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(is_same(a[k], b[k]) for k in a)
    return a == b


def undisturbed(n):
    random.seed(5)
    job = Job()
    return job.train(range(n)), job.state()


def kept(n, **options):
    """A job that has done n steps with Memory."""
    random.seed(5)
    job = Job()
    job.memory = checkpoint.Memory(job.parts(), **options)
    job.losses = job.train(job.memory.steps(n))
    return job


def continued(n, **options):
    """The next process: other generators, until the state is loaded."""
    random.seed(99)
    job = Job(seed=99)
    job.memory = checkpoint.Memory(job.parts(), **options)
    job.losses = job.train(job.memory.steps(n))
    return job


def test_two_lines_in_a_loop():
    losses, state = undisturbed(7)
    with crun() as (_, begin):
        first = kept(4)
        begin()
        second = continued(7)
        assert first.losses | second.losses == losses and list(second.losses) == [4, 5, 6]
        assert is_same(second.state(), state)
        begin()
        assert continued(7).losses == {}


def test_a_loop_of_another_form_and_every_second_step():
    with crun() as (fake, begin):
        job = Job()
        memory = checkpoint.Memory(job.parts(), every=2)
        assert memory.restore() == 0
        for step in range(1, 6):
            job.train([step])
            memory.save(step)
        memory.wait()
        assert set(fake.steps()) == {2, 4}
        begin()
        assert checkpoint.Memory(job.parts(), every=2).restore() == 4


def test_optimizer_step_waits_for_the_copy(monkeypatch):
    """A slow copy has the parameters of the step, not of the step behind."""
    copy = checkpoint._Layout.copy

    def copy_slowly(*args):
        time.sleep(0.1)
        copy(*args)

    monkeypatch.setattr(checkpoint._Layout, "copy", copy_slowly)
    with crun() as (fake, begin):
        kept(4)
        fake.slot(0, 4).put("number", 0)
        begin()
        job = Job(seed=2)
        assert checkpoint.Memory(job.parts()).restore() == 3 and is_same(job.state(), undisturbed(3)[1])


def test_the_bytes_are_those_of_dcp(tmp_path):
    """Each tensor and value of the block lies there as torch.save writes it, and plain dcp.load reads the copied files."""
    with crun() as (fake, _):
        job = kept(3)
        block = fake_blocks.files(fake.slot(0, 3).data())
        metadata = pickle.loads(block[".metadata"])
        before = torch.serialization.get_crc32_options()
        torch.serialization.set_crc32_options(False)
        for index, info in metadata.storage_data.items():
            if index.fqn.startswith("model."):
                buffer = io.BytesIO()
                torch.save(job.model.state_dict()[index.fqn[6:]], buffer)
                assert block[info.relative_path][info.offset:info.offset + info.length] == buffer.getvalue()
        torch.serialization.set_crc32_options(before)
        path = fake.write_folder(tmp_path, 3)
        found = job.state()
        tree = {"model": {k: torch.zeros_like(v) for k, v in found["model"].items()},
                "optim": {"state": {n: {k: torch.zeros_like(v) for k, v in s.items()} for n, s in found["moments"].items()}},
                "schedule": dict(Job().schedule.state_dict())}
        dcp.load(tree, checkpoint_id=path, no_dist=True)
        assert is_same(tree, {"model": found["model"], "optim": {"state": found["moments"]}, "schedule": found["schedule"]})


def test_dcp_saves_step_by_step_and_in_a_thread():
    """dcp.save and dcp.async_save; the step is the number at the end of checkpoint_id, or counted."""
    store = torch.distributed.HashStore()
    with crun() as (fake, begin):
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            writer = checkpoint.StorageWriter()
            for step in (10, 11, 12):
                state = {"a": torch.full((9, 5), step).t(), "n": step}
                dcp.async_save(state, checkpoint_id=f"x/step-{step}", storage_writer=writer).result()
            dcp.save({"a": torch.full((5, 9), 13), "n": 13}, storage_writer=checkpoint.StorageWriter())
            assert set(fake.steps()) == {12, 13} and not os.path.exists("x")
            with pytest.raises(dcp.CheckpointException, match="has to grow"):
                dcp.save(state, checkpoint_id="x/llama3", storage_writer=writer)
            begin()
            reader, state = checkpoint.StorageReader(), {"a": torch.zeros(5, 9, dtype=torch.int64), "n": 0}
            dcp.load(state, storage_reader=reader)
            assert reader.step == 13 and is_same(state, {"a": torch.full((5, 9), 13), "n": 13})
            fake.slot(0, 13).put("number", 0)
            begin()
            dcp.load(state, storage_reader=checkpoint.StorageReader())
            assert is_same(state, {"a": torch.full((5, 9), 12), "n": 12})
        finally:
            torch.distributed.destroy_process_group()


def test_numbers_go_on_from_the_folder(tmp_path):
    """Without memory of an earlier job dcp.save counts from the newest step of the folder on, which stays the newest otherwise."""
    (tmp_path / "step-50").mkdir()
    (tmp_path / "step-50/.metadata").touch()
    with crun() as (fake, _):
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        try:
            dcp.save({"n": 1}, storage_writer=checkpoint.StorageWriter(tmp_path))
        finally:
            torch.distributed.destroy_process_group()
        assert set(fake.steps()) == {51}


# ---- damage

@pytest.mark.parametrize("copies", [True, False])
def test_every_flipped_bit_is_found(copies):
    """With a copy on another node the step is not lost; else the step before is taken."""
    rng = random.Random(copies)
    with crun(copies=copies) as (fake, begin):
        for step in range(3, 33, 3):
            begin()
            job = continued(step)
            want = job.state()
            slot = fake.slot(0, step)
            fake.wait_for_copy(0, step)
            fake.flip(slot, rng.randrange(slot.bytes), rng.randrange(8))
            begin()
            other = Job(seed=1)
            assert checkpoint.Memory(other.parts()).restore() == (step if copies else step - 1)
            assert not copies or is_same(other.state(), want)


def test_damage_on_the_way_is_found_by_the_worker():
    with crun(copies=True) as (fake, begin):
        kept(4)
        fake.wait_for_copy(0, 4)
        fake.slot(0, 4).put("number", 0)        # not in this worker's memory
        fake.spoil = lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:]
        begin()
        assert checkpoint.Memory(Job().parts()).restore() == 3
        assert (0, 4, 0) in fake.bad


def test_a_late_writer_of_an_earlier_generation_brings_nothing_back():
    with crun() as (fake, begin):
        kept(4)
        begin()
        continued(6)
        fake.slot(0, 6).put("generation", 0)
        begin()
        assert checkpoint.Memory(Job().parts()).restore() == 5


def test_a_block_of_another_generation_is_not_taken():
    """The worker's own memory has the step that crun has chosen, but as another generation wrote the step."""
    with crun(copies=True) as (fake, begin):
        want = kept(4).state()
        fake.wait_for_copy(0, 4)
        slot = fake.slot(0, 4)
        block = bytearray(slot.data())
        info = next(i for index, i in pickle.loads(fake_blocks.files(block)[".metadata"]).storage_data.items()
                    if index.fqn == "model.0.weight")
        block[192 + info.offset + 800] ^= 1        # a weight
        os.pwrite(slot.fd, block, slot.offset)
        slot.put("checksum", zlib.crc32(block))
        slot.put("generation", 7)
        fake.bad.add((0, 4, 7))
        begin()
        job = Job(seed=1)
        assert checkpoint.Memory(job.parts()).restore() == 4 and is_same(job.state(), want)


def test_a_bad_state_is_rejected():
    """NaN is found behind the first step after a restore, and the step before is taken."""
    with crun() as (fake, begin):
        job = Job()
        for step in job_steps(job, 4):
            if step == 3:
                job.model[0].weight.data[0, 0] = float("nan")     # in the state of step 4
        begin()
        with pytest.raises(RuntimeError, match="step 4 is bad"):
            continued(7, check=True)
        begin()
        again = continued(7, check=True)
        assert list(again.losses) == [3, 4, 5, 6] and not any(v != v for v in again.losses.values())
        assert set(fake.steps()) >= {7}


def job_steps(job, n):
    memory = checkpoint.Memory(job.parts())
    for step in memory.steps(n):
        job.train([step])
        yield step


@pytest.mark.parametrize("what", ["metadata", "value"])
def test_nothing_but_data_is_unpickled(what, tmp_path):
    """A block with a right checksum that names a function."""
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    with crun() as (fake, begin):
        kept(4)
        slot = fake.slot(0, 4)
        block = bytearray(slot.data())
        if what == "metadata":
            at, size, _ = fake_blocks.FILE.unpack_from(block, 16 + fake_blocks.FILE.size)
            evil = pickle.dumps(Evil())
            block[at:at + len(evil)] = evil
        else:
            buffer = io.BytesIO()
            torch.save(Evil(), buffer)
            info = next(i for index, i in pickle.loads(fake_blocks.files(block)[".metadata"]).storage_data.items()
                        if index.fqn == "schedule.gamma")
            assert len(buffer.getvalue()) <= info.length
            at = 192 + info.offset
            block[at:at + info.length] = buffer.getvalue().ljust(info.length, b"\0")
        os.pwrite(slot.fd, block, slot.offset)
        slot.put("checksum", zlib.crc32(block))
        begin()
        with pytest.raises((pickle.UnpicklingError, dcp.api.CheckpointException)):
            checkpoint.Memory(Job().parts()).restore()
        assert not (tmp_path / "made").exists()


# ---- memory that is held or missing

def test_a_block_that_crun_reads_stays():
    """With two slots: the other one has the newest step of all ranks, so steps are left out meanwhile."""
    with crun() as (fake, _):
        job = kept(4)
        held = fake.slot(0, 4)
        held.hold(1)
        keep(job, 5, 6, 7)
        assert set(fake.steps()) == {4, 5} and held.is_whole(held.data()) and job.memory.n_left_out == 2
        held.hold(0)
        keep(job, 8, 9)
        assert set(fake.steps()) == {8, 9} and job.memory.n_left_out == 2


def test_a_third_slot_leaves_no_step_out():
    with crun(n_slots=3) as (fake, _):
        job = kept(4)
        held = fake.slot(0, 3)
        held.hold(1)
        keep(job, 5, 6, 7)
        assert set(fake.steps()) == {3, 6, 7} and held.is_whole(held.data()) and job.memory.n_left_out == 0


def keep(job, *steps):
    for step in steps:
        job.train([step])
        job.memory.save(step)
    job.memory.wait()


def test_without_memory_the_training_goes_on(capfd):
    with crun() as (fake, _):
        fake.limit = 1 << 20
        assert kept(4).losses == undisturbed(4)[0]
        assert fake.steps() == {} and "no memory for 1 MiB" in capfd.readouterr().err


def test_another_runtimes_memory_is_left_alone(capfd):
    with crun() as (fake, begin):
        os.pwrite(fake.state_fds[0], b"something", fake_blocks.TABLE_AT)
        begin()
        assert kept(3).losses == undisturbed(3)[0]
        assert "in use by another runtime" in capfd.readouterr().err


# ---- state that changes its form

def test_state_of_another_form_is_planned_anew():
    """A parameter group more, and a value that outgrows its place: left out once, then kept."""
    class Notes:
        text = ""

        def state_dict(self):
            return {"text": self.text}

        def load_state_dict(self, state):
            self.text = state["text"]

    with crun() as (fake, begin):
        job, notes, extra = Job(), Notes(), torch.nn.Linear(10, 1)
        memory = checkpoint.Memory(job.parts() | {"notes": notes, "extra": extra})
        for step in memory.steps(8):
            if step == 2:
                job.optimizer.add_param_group({"params": extra.parameters()})
            if step == 5:
                notes.text = "long" * 1000
            extra(torch.ones(1, 10)).sum().backward()
            job.train([step])
        assert memory.n_left_out == 2 and set(fake.steps()) == {7, 8}
        begin()
        other, notes = Job(seed=3), Notes()
        other.optimizer.add_param_group({"params": extra.parameters()})
        assert checkpoint.Memory(other.parts() | {"notes": notes, "extra": extra}).restore() == 8
        assert notes.text == "long" * 1000 and is_same(other.state(), job.state())


def test_a_value_that_cannot_be_loaded_is_named():
    class Odd:
        def state_dict(self):
            return {"path": pathlib.PurePosixPath("x")}

        def load_state_dict(self, state):
            pass

    with crun():
        job = Job()
        memory = checkpoint.Memory(job.parts() | {"odd": Odd()})
        with pytest.raises((TypeError, dcp.api.CheckpointException), match="odd.path: weights_only"):
            job.train(memory.steps(2))


# ---- outside crun

def test_the_folder_outside_crun(tmp_path, monkeypatch):
    monkeypatch.setenv("CRUN_STATE_FD", "0")       # alone
    checkpoint._blocks.cache_clear()
    losses, state = undisturbed(6)
    first = kept(4, folder=tmp_path, folder_every=3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-3", "step-4"]
    second = continued(6, folder=tmp_path)
    assert first.losses | second.losses == losses and is_same(second.state(), state)
    tree = {"model": Job(seed=8).model.state_dict()}
    reader = checkpoint.StorageReader(tmp_path)
    dcp.load(tree, storage_reader=reader, no_dist=True)
    assert reader.step == 6 and is_same(tree["model"], state["model"])
    dcp.save(tree, storage_writer=checkpoint.StorageWriter(tmp_path), no_dist=True)
    assert (tmp_path / "step-7/.metadata").exists()


# ---- four ranks

CASES = [("fsdp", "memory"), ("hsdp", "memory"), ("tp", "memory"), ("ddp", "memory"), ("fsdp", "writer")]


@pytest.fixture(scope="module")
def ranks():
    """Forks of one interpreter, with a crun for each test."""
    with forked_ranks.Ranks() as r:
        r.cruns = [fake_blocks.FakeCrun(N) for _ in range(len(CASES) + 1)]
        r.start([fd for fake in r.cruns for fd in fake.fds()])
        yield r
        for fake in r.cruns:
            fake.close()


def results(folder):
    """Losses by (rank, step), of generations and of the reference; digests of both."""
    steps, reference, ends = {}, {}, {}
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            word, *rest = line.split()
            if word == "end":
                ends.setdefault(rest[0] == "reference", set()).add((path.name, rest[1]))
            else:
                (reference if word == "reference" else steps).setdefault((path.name, int(rest[0])), []).append((word, rest[1]))
    return steps, reference, ends


KILL_STEP = 4


@pytest.mark.parametrize("kind, how", CASES)
def test_a_killed_rank_costs_a_step(ranks, tmp_path, kind, how):
    """Losses, parameters and moments are the undisturbed run's, bit for bit."""
    fake = ranks.cruns[CASES.index((kind, how))]
    args = [kind, 6, tmp_path, f"how={how}", f"kill=2:{KILL_STEP}", "reference=1"]
    assert -9 in ranks.generation(fake, N, args)
    kept_steps = fake.steps()
    assert ranks.generation(fake, N, args, 1) == [0] * N
    steps, reference, ends = results(tmp_path)
    assert ends[True] == ends[False] and len(ends[True]) == N
    assert all(loss == reference[key][0][1] for key, runs in steps.items() for _, loss in runs)
    first = min(step for (_, step), runs in steps.items() if any(g == "1" for g, _ in runs))
    assert first == max(kept_steps) and KILL_STEP - 1 <= first <= KILL_STEP


def test_another_world_size(ranks, tmp_path):
    """Blocks of four ranks are loaded by two. DCP reads the folders of both."""
    fake, out = ranks.cruns[-1], tmp_path / "out"
    out.mkdir()
    assert ranks.generation(fake, N, ["fsdp", 3, out]) == [0] * N
    four = folder_of(fake, tmp_path, 3)
    fake.n_ranks = 2
    assert ranks.generation(fake, 2, ["fsdp", 4, out], 1) == [0] * 2
    assert fake.steps()[4] == 2
    two = folder_of(fake, tmp_path, 4)
    assert {int(line.split()[1]) for line in (out / "0").read_text().splitlines() if line.startswith("1 ")} == {3}
    assert two.keys() == four.keys() and all(0 < (two[k] - v).abs().max() < 0.01 for k, v in four.items() if v.is_floating_point())


def folder_of(fake, folder, step):
    """The model of a step as plain DCP reads the files of crun's folder."""
    return dcp.state_dict_loader._load_state_dict_from_keys(keys={"model"}, checkpoint_id=fake.write_folder(folder, step))["model"]


# ---- crun itself instead of the fake

def under_crun(*args, on_line=lambda pid, line: None):
    """The lines of two workers that may be restarted."""
    command = [jobs.crun(), "--standalone", "--nproc-per-node=2", "--max-restarts=1", "--no-python", sys.executable, *args]
    with subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "PYTHONPATH": str(jobs.ROOT / "python")}) as p:
        lines = []
        for line in p.stdout:
            on_line(p.pid, line)
            lines.append(line)
    assert p.returncode == 0
    return lines


def kill_worker(crun, rank):
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            variables = (path / "environ").read_bytes().split(b"\0")
            if f"RANK={rank}".encode() in variables and crun in ancestors(int(path.name)):
                os.kill(int(path.name), signal.SIGKILL)


def ancestors(pid):
    while pid > 1:
        pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        yield pid


def test_crun_keeps_the_state_and_writes_the_folder(tmp_path):
    """A job with a killed rank ends as the undisturbed run does, and leaves its last step to plain dcp.load."""
    out, folder = tmp_path / "out", tmp_path / "folder"
    out.mkdir()
    under_crun(forked_ranks.JOB, "fsdp", 6, out, f"kill=1:{KILL_STEP}", "reference=1", f"folder={folder}")
    steps, reference, ends = results(out)
    assert ends[True] == ends[False] and len(ends[True]) == 2
    assert all(loss == reference[key][0][1] for key, runs in steps.items() for _, loss in runs)
    assert min(step for (_, step), runs in steps.items() if any(g == "1" for g, _ in runs)) >= KILL_STEP - 1
    model = dcp.state_dict_loader._load_state_dict_from_keys(keys={"model"}, checkpoint_id=folder / "step-6")["model"]
    assert model["0.up.weight"].shape == (64, 16) and model["0.n_calls"] == 6


def test_the_example_is_its_plain_twin_in_three_lines():
    plain, memory = (jobs.ROOT / "python/examples" / f"fsdp_{name}.py" for name in ("plain", "memory"))
    plain, memory = (path.read_text().split('"""', 2)[2].splitlines() for path in (plain, memory))
    changed = [line for line in difflib.ndiff(plain, memory) if line[0] in "+-" and line[1:].strip()]
    assert [line[0] for line in changed] == list("++-+")      # an import, a line more, a line changed


def test_the_example_goes_on_behind_a_kill():
    kills = []

    def kill(crun, line):
        if line.startswith("step 100/") and not kills:
            kills.append(kill_worker(crun, 1))

    lines = under_crun(jobs.ROOT / "python/examples/fsdp_memory.py", 150, on_line=kill)
    steps = [line for line in lines if line.startswith("step ")]
    assert kills and len(set(steps)) == 3 and steps[0] not in steps[1:]     # step 100 may be done again, with the same loss
