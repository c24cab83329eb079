"""The logs of tests/workers/torch_in_place.py, and the PyTorch that can do it."""

import collections
import functools
import json
import os
import pathlib
import subprocess
import tempfile

import jobs

SCRIPT = jobs.ROOT / "tests/workers/torch_in_place.py"


def python():
    """(interpreter with PyTorch 2.15, None) or (None, why there is none). CRUN_TESTS_TORCH215_S: seconds that an installation may take; 0,
    the default: none is begun."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    venv = cache / "crun-tests/torch215/bin/python"
    has = subprocess.run([venv, "-c", "import torch.distributed as d; assert hasattr(d, '_reconfigure')"],
                         capture_output=True).returncode == 0 if venv.exists() else False
    if has:
        return str(venv), None
    seconds = int(os.environ.get("CRUN_TESTS_TORCH215_S", "0"))
    if not seconds:
        return None, ("PyTorch 2.15 is not installed; tests/tools/python 2.15.0 does that (5.4 GB), or "
                      "CRUN_TESTS_TORCH215_S=SECONDS here")
    try:
        p = subprocess.run([jobs.ROOT / "tests/tools/python", "2.15.0"], capture_output=True, text=True, timeout=seconds)
        return (p.stdout.strip(), None) if p.returncode == 0 else (None, f"PyTorch 2.15 cannot be installed: {p.stderr[-300:]}")
    except subprocess.TimeoutExpired:
        return None, f"PyTorch 2.15 could not be installed within {seconds} s (CRUN_TESTS_TORCH215_S)"


@functools.cache
def cache_folder():
    """For the lists of modules of crun --warm: of this process and all its jobs."""
    return tempfile.TemporaryDirectory()


def environment(python):
    return {**os.environ, "PATH": f"{pathlib.Path(python).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR", "PYTHON_EXEC": python,
            "XDG_CACHE_HOME": cache_folder().name}


def kept_by_gloo(text):
    """How many ranks have ended themselves because gloo did not let them out of a collective."""
    return text.count("gloo keeps this process in a collective")


class Logs:
    """Of all processes of a job so far."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.sizes, self.lines = {}, {}

    def read(self):
        for path in self.folder.glob("[0-9]*.[0-9]*"):
            rank, pid = map(int, path.name.split("."))
            with open(path) as f:
                f.seek(self.sizes.get(path, 0))
                text = f.read()
            whole = text[:text.rfind("\n") + 1]
            self.sizes[path] = self.sizes.get(path, 0) + len(whole)
            self.lines.setdefault((rank, pid), []).extend(map(json.loads, whole.splitlines()))
        return self

    def done(self):
        """(rank, pid, step, generation, world size, time) of the steps."""
        return [(*key, *line[1:]) for key, lines in self.lines.items() for line in lines if line[0] == "done"]

    def steps(self):
        return max((step for _, _, step, *_ in self.done()), default=0)

    def ends(self):
        return [line for lines in self.lines.values() for line in lines if line[0] == "end"]

    def first_step_after(self, generation, world):
        """(step, when all ranks had done it) of the first step in a generation after this one with that many ranks, or None."""
        seen = collections.defaultdict(list)
        for _, _, step, g, size, at in self.done():
            if g > generation and size == world:
                seen[step].append(at)
        whole = [(step, max(times)) for step, times in seen.items() if len(times) >= world]
        return min(whole, default=None)

    def check_steps(self):
        """No process takes a step back, and none of the steps is missing. Returns their number."""
        steps = set()
        for key, lines in self.lines.items():
            own = [line[1] for line in lines if line[0] == "done"]
            assert own == sorted(set(own)), f"{key} did a step twice"
            steps |= {line[1] for line in lines if line[0] == "try"}
        assert steps == set(range(1, max(steps) + 1)), "steps are missing"
        return max(steps)

    def check_samples(self, n_samples):
        """Each sample of each epoch that has ended was used once: a step that was done again counts as it was done last."""
        last = {}
        for lines in self.lines.values():
            for line in lines:
                if line[0] == "try":
                    _, step, generation, epoch, numbers = line
                    if generation >= last.get(step, (-1,))[0]:
                        if generation > last.get(step, (-1,))[0]:
                            last[step] = (generation, epoch, [])
                        last[step][2].extend(numbers)
        used = collections.defaultdict(collections.Counter)
        for _, epoch, numbers in last.values():
            used[epoch].update(numbers)
        whole = sorted(used)[:-1] if not self.ends() else sorted(used)
        for epoch in whole:
            assert len(used[epoch]) == n_samples and set(used[epoch].values()) == {1}, \
                f"epoch {epoch}: {len(used[epoch])} of {n_samples} samples, up to {max(used[epoch].values())} times"
        return len(whole)
