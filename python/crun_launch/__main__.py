"""python -m crun_launch alias DIR: makes the folder DIR with a link `torchrun` to crun.

Put in front of PATH, it runs crun for everything that starts torchrun by its name. torch's own torchrun is not touched,
which is why no package installs such a link into an environment.
"""

import argparse
import os
import sys

import crun_launch


def make_alias(folder):
    """Returns the path of the link; one that leads elsewhere is replaced, anything else is left alone."""
    link = os.path.join(folder, "torchrun")
    os.makedirs(folder, exist_ok=True)
    if os.path.lexists(link) and not os.path.islink(link):
        sys.exit(f"crun_launch: {link} is there and is no link; choose another folder")
    temporary = f"{link}.{os.getpid()}"
    os.symlink(crun_launch.program("crun"), temporary)
    os.replace(temporary, link)
    return link


def main():
    parser = argparse.ArgumentParser(prog="python -m crun_launch", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    alias = commands.add_parser("alias", help="make a folder with a link torchrun to crun")
    alias.add_argument("folder")
    args = parser.parse_args()
    make_alias(args.folder)
    print(f'export PATH="{os.path.abspath(args.folder)}:$PATH"')


if __name__ == "__main__":
    main()
