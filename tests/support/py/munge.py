"""munged with a key of its own, and Debian's munge and unmunge as clients of it."""

import contextlib
import os
import pathlib
import subprocess

import jobs

NOBODY = 65534


class Munged:
    """.socket; .environment(job): of a step of Slurm over two nodes that uses it."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.socket = self.folder / "munge.socket"
        self.conf = self.folder / "slurm.conf"

    def environment(self, job=77):
        return {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NODELIST": "n[1-2]",
                "SLURM_CONF": str(self.conf)}

    def _run(self, command, data, user):
        prefix = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user != os.getuid() else []
        return subprocess.run([*prefix, *command, f"--socket={self.socket}"], input=data, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=60)

    def make(self, payload, user=0, for_user=None):
        """A credential of that user."""
        restriction = [] if for_user is None else [f"--restrict-uid={for_user}"]
        got = self._run(["munge", "--input=-", "--cipher=aes128", *restriction], payload, user)
        assert got.returncode == 0, got.stderr
        return got.stdout.strip()

    def open(self, credential, user=0):
        """The payload, or the reason why it cannot be opened."""
        got = self._run(["unmunge", "--input=-", "--metadata=/dev/null"], credential, user)
        return got.stdout if got.returncode == 0 else got.stderr.decode()

    def start(self):
        self.process = subprocess.Popen(
            ["munged", "--foreground", "--force", f"--key-file={self.folder}/munge.key", f"--socket={self.socket}",
             f"--pid-file={self.folder}/munged.pid", f"--seed-file={self.folder}/munged.seed", f"--log-file={self.folder}/munged.log"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        jobs.wait_for(self.socket.exists, 60, 0.05)

    def __enter__(self):
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self.folder.chmod(0o755)
        self.conf.write_text(f"ClusterName=test\nauthinfo=cred_expire=10,socket={self.socket} # of the test\nKillWait=20\n")
        self.start()
        return self

    def __exit__(self, *exc):
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(FileNotFoundError):
            self.socket.unlink()
