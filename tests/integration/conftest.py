"""What the tests of programs share."""

import gzip
import pathlib
import signal
import struct

import pytest

import jobs
import launches

FASHION_MNIST = pathlib.Path("/usr/share/datasets/fashion-mnist")


def pytest_configure(config):
    # Under nohup or in the background of a shell some signals are ignored, and every process would inherit that. One
    # that is caught here has its default action there.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    config.addinivalue_line("markers", "sanitize: also run against programs built with AddressSanitizer")


@pytest.fixture(autouse=True)
def end_of_launches():
    yield
    launches.end_all()


@pytest.fixture(scope="session")
def small_data(tmp_path_factory):
    """The first 640 training and 200 test images, plain: tests that start often need not inflate 70,000."""
    folder = tmp_path_factory.mktemp("data")
    for name in jobs.MNIST_FILES:
        raw = gzip.decompress((FASHION_MNIST / (name + ".gz")).read_bytes())
        n = 640 if name.startswith("train") else 200
        header, item = (16, 784) if "images" in name else (8, 1)
        out = bytearray(raw[: header + n * item])
        out[4:8] = struct.pack(">I", n)
        (folder / name).write_bytes(out)
    return folder
