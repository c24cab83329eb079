"""File systems that stand still, in a mount namespace of the process: one whose writes wait in state D, by fsfreeze."""

import contextlib
import ctypes
import os
import shutil
import subprocess

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18

# Thaws when its input ends, so also when the test is killed: processes in state D obey no signal.
GUARD = 'mount -o loop,nodev,nosuid "$1" "$2" && : > "$2/file" && chmod 666 "$2/file" && fsfreeze -f "$2" && echo frozen && read -r _; ' \
        'fsfreeze -u "$2"; umount -l "$2"'


def private_mounts():
    """From here on mounts of this process and its children are theirs alone; call it before threads begin."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0 or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) != 0:
        raise OSError(ctypes.get_errno(), "no mount namespace")


def why_not():
    """Why no file system can be frozen here; None: it can."""
    if os.geteuid() != 0:
        return "fsfreeze needs root"
    for program in ("fsfreeze", "mkfs.ext4", "losetup"):
        if not shutil.which(program):
            return f"{program} is not installed"
    return None if os.path.exists("/dev/loop-control") else "there is no /dev/loop-control"


class FrozenDisk:
    """FOLDER is a frozen file system with a file "file" until thaw()."""

    def __init__(self, folder):
        image = folder.with_suffix(".image")
        folder.mkdir()
        with open(image, "wb") as f:
            f.truncate(8 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
        self.guard = subprocess.Popen(["sh", "-c", GUARD, "sh", image, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.DEVNULL, start_new_session=True)
        if self.guard.stdout.readline() != b"frozen\n":
            self.thaw()
            raise OSError(f"{folder} was not frozen")

    def thaw(self):
        with contextlib.suppress(BrokenPipeError):
            self.guard.stdin.close()
        self.guard.wait(30)
        self.guard.stdout.close()
