"""Short programs that need PyTorch, each in a process of its own, forked from one that has imported it: that takes seconds.

    with Parts() as parts:
        p = parts.run("import torch; ...", FD, NAME="value")     # a subprocess.CompletedProcess
"""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile

REQUEST_MAX = 1 << 17
FIRST_FREE_FD = 200  # above those that a part is given under their own numbers


class Parts:
    def __init__(self):
        self.requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()],
                                            start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1"})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.requests.close()
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def run(self, code, *fds, timeout=100, **environment):
        """The part has the descriptors under the same numbers, and the environment of this process with what is named."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            request = {"code": code, "fds": [1, 2, *fds], "environment": {**os.environ, **environment}}
            self.requests.settimeout(timeout)
            socket.send_fds(self.requests, [json.dumps(request).encode()], [out.fileno(), err.fileno(), *fds])
            answer = self.requests.recv(100)
            assert answer, "the process that forks the parts has ended"
            out.seek(0), err.seek(0)
            return subprocess.CompletedProcess(code, int(answer), out.read().decode(), err.read().decode())


def begin_part(request, fds):
    """In the forked process: returns the code to run."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, FIRST_FREE_FD) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, number in zip(high, request["fds"]):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:0] = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return request["code"]


def serve(requests):
    """Forks a process for each request; returns in those, with what they have to run."""
    while True:
        data, fds, _, _ = socket.recv_fds(requests, REQUEST_MAX, 16)
        if not data:
            sys.exit(0)
        pid = os.fork()
        if pid == 0:
            requests.close()
            return begin_part(json.loads(data), fds)
        for fd in fds:
            os.close(fd)
        requests.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


if __name__ == "__main__":
    import torch
    import torch.distributed
    import torch.utils.data.distributed

    exec(compile(serve(socket.socket(fileno=int(sys.argv[1]))), "part", "exec"), {"__name__": "__main__"})
