"""podman (Debian's) on a machine with runc before and after each way of installing crun (tests/soak podman): the runtime that it
takes. No container runs.

Everything happens in a mount namespace: runc, which is downloaded, in place of the OCI crun, and a /usr/local of its own.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import jobs

FORMAT = "{{.Host.OCIRuntime.Name}} {{.Host.OCIRuntime.Path}}"
# The first machine has runc alone, the second one the OCI crun alone.
MACHINES = {"runc": "runc /usr/sbin/runc", "OCI crun": "crun /usr/bin/crun"}
# How crun was installed -> the podman that the documents promise: as before, or as before once its runtime is named.
WAYS = {"nothing": True, "meson install": True, "meson install, short_names=false": True, "meson install, short_names=true": False,
        "wheel, not active": True, "wheel, active": False}
ENTER = """
set -e
mount --bind "$1/local" /usr/local
if [ "$2" = runc ]; then
    mount -t overlay overlay -o "lowerdir=$1/hidden:/usr/bin" /usr/bin
    mount -t overlay overlay -o "lowerdir=$1/runc/usr/sbin:/usr/sbin" /usr/sbin
fi
shift 2
exec "$@"
"""


def run(*command, **more):
    p = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1200, **more)
    if p.returncode != 0:
        sys.exit(f"{command}: {p.stdout}{p.stderr}")
    return p.stdout


def prepare(work):
    for name in ("local", "hidden", "runc"):
        (work / name).mkdir()
    os.mknod(work / "hidden" / "crun", 0o020000, 0)  # a whiteout: the file below is not there
    run("apt-get", "-o", "APT::Sandbox::User=root", "download", "runc", cwd=work)
    run("dpkg", "-x", next(work.glob("runc_*.deb")), work / "runc")
    for kind in ("auto", "true", "false"):
        run("meson", "setup", work / kind, jobs.ROOT, "-Druntime=false", f"-Dshort_names={kind}")
        run("ninja", "-C", work / kind)
        run("meson", "install", "-C", work / kind, "--destdir", work / f"root-{kind}")
    run(sys.executable, jobs.ROOT / "packaging/build-wheel", "--build", jobs.build_folder(), "--out", work)
    run(sys.executable, "-m", "venv", "--without-pip", work / "env")
    run(sys.executable, "-m", "pip", "--python", work / "env/bin/python", "install", "-q", "--no-index", next(work.glob("*.whl")))
    (work / "named.conf").write_text('[engine]\nruntime = "runc"\n')


def install(work, way):
    shutil.rmtree(work / "local")
    kind = way.partition("short_names=")[2] or "auto"
    if way.startswith("meson"):
        shutil.copytree(work / f"root-{kind}/usr/local", work / "local", symlinks=True)
    else:
        (work / "local").mkdir()
    names = [name for name in ("crun", "crun-launch") if (work / "local/bin" / name).exists()]
    return " ".join(names) or "-"


def podman(work, machine, way, named):
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(work)}
    if way == "wheel, active":
        environment["PATH"] = f"{work}/env/bin:{environment['PATH']}"
    if named:
        environment["CONTAINERS_CONF"] = str(work / "named.conf")
    return run("unshare", "-m", "sh", "-c", ENTER, "sh", work, machine, "podman", "info", "--format", FORMAT, env=environment).strip()


def main():
    if os.geteuid() != 0 or not shutil.which("podman"):
        print("SKIP: needs root and podman")
        return 2
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        prepare(work)
        print(f"{'machine':10}{'crun was installed by':35}{'names':18}{'runtime of podman':40}runtime when named")
        for machine, before in MACHINES.items():
            for way, is_as_before in WAYS.items():
                names = install(work, way)
                found = podman(work, machine, way, False)
                named = podman(work, machine, way, True) if machine == "runc" else "-"
                is_right = (found == before) == (is_as_before or machine != "runc") and named in ("-", before)
                wrong += not is_right
                print(f"{machine:10}{way:35}{names:18}{found:40}{named}{'' if is_right else '  WRONG'}")
    print(json.dumps({"ways": len(WAYS) * len(MACHINES), "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
