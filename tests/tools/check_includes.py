#!/usr/bin/env python3
"""Directions between rooms and folders, and what a core may include, read from the #include lines.

 - ORDER lists the folders from the lowest to the highest. A file includes from folders before its own, or from its
   own. So there is no cycle. What no order expresses (the worker runtime never sees the rendezvous) is in APART.
 - A file without one of the suffixes _os _uv _sock _json _nccl _openssl is a core: it includes neither a system header for
   I/O, threads or clocks nor the header of another module with a suffix. CORELESS are folders that hold none, and
   EXCEPTIONS single files, each with its reason. An exception that is no longer needed fails, too.

Prints the arrows between folders and each violation.
"""

import collections
import os
import re
import sys

from tree import ROOT, sources

ORDER = """
    base
    proto
    rendezvous/store rendezvous/relay rendezvous/session rendezvous/rounds rendezvous/etcd rendezvous/server
    rendezvous/keys rendezvous/agents rendezvous/daemon
    launcher/util launcher/cli launcher/host launcher/output launcher/supervise launcher/report launcher/rdzv launcher/watch launcher/ctl
    launcher/snapshots launcher/crunctl launcher/agent launcher/front launcher launcher/completions
    worker-runtime worker-runtime/base worker-runtime/shm worker-runtime/net worker-runtime/kernels/cpu
    worker-runtime/model worker-runtime/data worker-runtime/group worker-runtime/checkpoint
    worker-runtime/kernels/cuda worker-runtime/cuda
    worker-runtime/programs worker-runtime/example
""".split()
APART = [("worker-runtime", "rendezvous"), ("worker-runtime", "launcher"),
         ("worker-runtime/programs", "worker-runtime/")]

SUFFIXED = re.compile(r"_(?:os|uv|sock|json|nccl|openssl)\.(?:c|h|cu|cuh)$")
IO_HEADERS = set("""
    arpa/inet.h cjson/cJSON.h cuda_runtime.h cuda_runtime_api.h dirent.h dlfcn.h fcntl.h getopt.h grp.h ifaddrs.h
    linux/futex.h nccl.h net/if.h netdb.h netinet/in.h netinet/ip.h netinet/tcp.h poll.h pthread.h pwd.h sched.h
    semaphore.h signal.h spawn.h sys/epoll.h sys/eventfd.h sys/file.h sys/inotify.h sys/ioctl.h sys/mman.h sys/prctl.h
    sys/random.h sys/resource.h sys/sendfile.h sys/signalfd.h sys/socket.h sys/stat.h sys/statvfs.h sys/syscall.h
    sys/time.h sys/timerfd.h sys/uio.h sys/un.h sys/utsname.h sys/vfs.h sys/wait.h syslog.h termios.h threads.h time.h
    unistd.h uv.h zlib.h
""".split())
IO_LOCAL = {"base/time.h"}  # without a suffix, and reads a clock all the same

CORELESS = {
    "worker-runtime/cuda": "the backend drives the device and NCCL; its decisions have tests on the emulated host",
    "worker-runtime/kernels/cuda": "kernels",
    "worker-runtime/programs": "parts of the program train, which prints, waits and writes files",
    "worker-runtime/example": "a program",
}
EXCEPTIONS = {
    "base/cleanup.h": {"unistd.h": "close() for descriptors that are locals"},
    "base/time.h": {"time.h": "the clocks, for shells"},
    "launcher/cli/job.c": {"signal.h": "numbers of signals"},
    "launcher/front/front.c": {"signal.h": "numbers of signals"},
    "launcher/report/report.c": {"signal.h": "numbers of signals"},
    "launcher/util/signal_name.c": {"signal.h": "names of signals"},
    "launcher/supervise/worker_group.c": {"signal.h": "numbers of signals", "sys/wait.h": "the fields of a wait status"},
    "launcher/rdzv/rdzv_static.c": {"launcher/rdzv/rdzv_static_json.h": "values of the static rendezvous are JSON"},
    "proto/address.c": {"arpa/inet.h": "inet_pton() checks an address", "netinet/in.h": "the layout of socket addresses"},
    "proto/address.h": {"netinet/in.h": "the layout of socket addresses", "sys/socket.h": "the same"},
    "rendezvous/keys/fence.c": {"netinet/in.h": "the layout of socket addresses"},
    "rendezvous/store/store_table.c": {"sys/mman.h": "gives the pages of a large array back in parts"},
    "rendezvous/store/outbox.h": {"sys/uio.h": "struct iovec"},
    "worker-runtime/checkpoint/snapshot.h": {
        "worker-runtime/checkpoint/snapshot_file_os.h": "the table of system calls, which tests replace"},
    "base/crc32.c": {"pthread.h": "pthread_once() around a table"},
    "worker-runtime/kernels/cuda/mma.cuh": {
        "tests/fakes/cuda_host/cuda_mma.h": "the tests compile the kernels for the host, which has no such instruction"},
}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)', re.M)


def room(path):
    return path.split("/")[0]


def is_core(path):
    return not SUFFIXED.search(path) and os.path.basename(path) != "main.c" and os.path.dirname(path) not in CORELESS


def own_header(path, header):
    return os.path.splitext(path)[0] == os.path.splitext(header)[0]


def is_apart(path, header):
    return any((path + "/").startswith(a + "/") and header.startswith(b) and
               os.path.dirname(header) not in (os.path.dirname(path), "worker-runtime") for a, b in APART)


def main():
    paths = sources()
    rank = {folder: i for i, folder in enumerate(ORDER)}
    arrows = collections.Counter()
    back, impure, used = [], [], set()

    def exempt(path, header):
        used.add((path, header))
        return header in EXCEPTIONS.get(path, {})

    for folder in sorted({os.path.dirname(p) for p in paths} - set(ORDER)):
        back.append(f"{folder}: not in the order of check_includes.py")
    for path in paths:
        folder = os.path.dirname(path)
        for kind, header in INCLUDE.findall((ROOT / path).read_text()):
            if kind == "<":
                if header in IO_HEADERS and is_core(path) and not exempt(path, header):
                    impure.append(f"{path} includes <{header}>")
                continue
            if not (ROOT / header).is_file():
                back.append(f"{path} includes \"{header}\", which is not a path from the root")
                continue
            target = os.path.dirname(header)
            if target != folder:
                arrows[folder, target] += 1
                against = rank.get(target, -1) > rank.get(folder, len(ORDER))
                if (header.startswith("tests/") or against or is_apart(path, header)) and not exempt(path, header):
                    back.append(f"{path} includes {header}")
            if is_core(path) and (SUFFIXED.search(header) or header in IO_LOCAL) and not own_header(path, header) and not exempt(path, header):
                impure.append(f"{path} includes {header}")
    unused = [f"{path} no longer includes {header}: remove the exception"
              for path, headers in EXCEPTIONS.items() for header in headers if (path, header) not in used]

    by_folder = collections.defaultdict(list)
    for (folder, target), n in arrows.items():
        by_folder[folder].append(f"{target} {n}")
    for folder in ORDER:
        if folder in by_folder:
            print(f"  {folder:28} -> {', '.join(sorted(by_folder[folder]))}")
    for title, lines in (("back", back), ("not pure", impure), ("unused", unused)):
        for line in lines:
            print(f"  {title}: {line}")
    print(f"includes: {len(arrows)} arrows between folders, {len(back)} back; {len(impure)} in cores; "
          f"{len(unused)} unused exceptions (0, 0, 0)")
    return 1 if back or impure or unused else 0


if __name__ == "__main__":
    sys.exit(main())
