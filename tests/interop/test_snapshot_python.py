"""Snapshots in Python: the stock safetensors package opens them, and their checksums are what they say."""

import json
import struct
import subprocess

import pytest

from strict import skip

STEP = 1234
TENSORS = {
    "model.bytes": ("uint8", [7]),
    "model.conv.weight": ("float32", [2, 3, 4]),
    "optim.conv.weight.square_avg": ("float64", [5]),
    "buffer.bn.num_batches_tracked": ("int64", [3]),
    "model.scale": ("float32", []),
    "model.halves": ("bfloat16", [2, 2]),
    "model.empty": ("float32", [0, 3]),
}


@pytest.fixture(scope="module")
def path(build, tmp_path_factory):
    folder = tmp_path_factory.mktemp("snapshots")
    subprocess.run([build / "tests/interop/crw-snapshot-writer", folder, str(STEP)], check=True, timeout=60)
    return folder / f"snap-{STEP:012d}.safetensors"


@pytest.fixture(scope="module")
def opened(path):
    pytest.importorskip("torch")
    try:
        from safetensors import safe_open
    except ImportError as error:
        skip(f"the package safetensors is not installed: {error}")
    with safe_open(path, framework="pt") as file:
        yield file


def crc32c(data):
    """Bit by bit, to owe nothing to the C code."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return f"{crc ^ 0xFFFFFFFF:08x}"


def test_tensors(opened):
    import torch

    assert sorted(opened.keys()) == sorted(TENSORS)
    for name, (dtype, shape) in TENSORS.items():
        tensor = opened.get_tensor(name)
        assert tensor.dtype == getattr(torch, dtype), name
        assert list(tensor.shape) == shape, name
        if name == "model.scale":
            assert tensor.item() == 0.5
        else:
            assert torch.equal(tensor.flatten().double(), torch.arange(tensor.numel()).double()), name


def test_metadata(opened):
    meta = opened.metadata()
    assert meta["epoch"] == "3"
    assert meta["note"] == 'quote " backslash \\ tab \t'
    assert meta["name"] == "Françoise € 😀"
    assert meta["crw.format"] == "1"
    assert meta["crw.step"] == str(STEP)
    assert all(type(value) is str for value in meta.values())


def test_checksums(path):
    content = path.read_bytes()
    n = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:8 + n])
    meta = header.pop("__metadata__")
    assert (8 + n) % 8 == 0
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        assert meta[f"crw.crc32c.{name}"] == crc32c(content[8 + n:][begin:end]), name
    own = meta["crw.header_crc32c"]
    blank = content[:8 + n].replace(f'"crw.header_crc32c":"{own}"'.encode(), b'"crw.header_crc32c":"00000000"')
    assert own == crc32c(blank)
