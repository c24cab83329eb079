"""Makes the Python modules that tests share importable. Pytest reads this file before any test below this folder."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
