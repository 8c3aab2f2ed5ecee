"""The files of a checkpoint: whole, or known not to be."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from hypothesis import given, strategies as st

from distrun.checkpoint import file_format
from distrun.checkpoint.numpy_arrays import captured
from distrun.checkpoint.snapshot import Snapshot, shares
from distrun.errors import CheckpointError

ARRAYS = {
    "a": np.arange(5, dtype=np.int16),
    "b": np.array(2.5),
    "c": np.ones((2, 3), np.float32),
    "d": np.array([1 + 2j]),
    "e": np.array([True, False]),
    "f": np.empty((0, 4)),
}


def written(path, arrays=ARRAYS, **metadata):
    """Write arrays to a part; return their places."""
    snapshot = Snapshot()
    entries = snapshot.take({name: captured(array, name) for name, array in arrays.items()})
    file_format.write(path, metadata, entries, snapshot.data(entries))
    return entries


@pytest.fixture
def part(tmp_path):
    """A part that is whole."""
    path = tmp_path / "part"
    written(path, note="12345678")
    return path


def test_a_part_comes_back_bit_for_bit(part):
    header, tensors = file_format.read(part)
    assert header.metadata["note"] == "12345678"
    assert {name: data.tobytes() for name, data in tensors.items()} == {
        name: array.tobytes() for name, array in ARRAYS.items()
    }
    assert file_format.read_header(part) == header
    assert header.size == part.stat().st_size
    assert [each.name for each in part.parent.iterdir()] == ["part"]


def test_a_part_is_a_file_of_safetensors(part):
    """Checked against the format's rules: no gaps, aligned, dtypes by its names, metadata of texts."""
    data = part.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    assert all(isinstance(value, str) for value in header.pop("__metadata__").values())
    assert header["c"] == {"dtype": "F32", "shape": [2, 3], "data_offsets": header["c"]["data_offsets"]}
    assert header["d"]["dtype"] == "U8"  # the format has no complex128
    assert header["e"]["dtype"] == "BOOL"
    stops = sorted(entry["data_offsets"] for entry in header.values())
    assert [start for start, _ in stops] == [0, *(stop for _, stop in stops)][:-1]
    assert stops[-1][1] == len(data) - 8 - length
    for name, array in ARRAYS.items():
        start, stop = header[name]["data_offsets"]
        assert data[8 + length :][start:stop] == array.tobytes()
        assert start == stop or start % array.dtype.itemsize == 0


def test_a_part_of_any_shorter_length_is_damaged(part):
    data = part.read_bytes()
    for length in range(len(data)):
        part.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match=r"part is damaged: "):
            file_format.read(part)
        with pytest.raises(CheckpointError, match=r"part is damaged: "):
            file_format.read_header(part)


@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_part_with_any_other_byte_is_damaged(tmp_path_factory, place, flip):
    path = tmp_path_factory.mktemp("flip") / "part"
    written(path, note="12345678")
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= flip
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"part is damaged: "):
        file_format.read(path)


def test_bytes_that_are_appended_are_damage(part):
    with part.open("ab") as file:
        file.write(b"\0")
    with pytest.raises(CheckpointError, match="bytes, and should have"):
        file_format.read(part)


def test_a_part_without_tensors(tmp_path):
    assert written(tmp_path / "part", {}) == []
    assert file_format.read(tmp_path / "part")[1] == {}


def test_a_part_that_cannot_be_written_leaves_the_former_and_nothing_else(part, monkeypatch):
    before = part.read_bytes()

    def fail(descriptor):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        written(part, {"a": np.zeros(9)})
    assert part.read_bytes() == before
    assert [each.name for each in part.parent.iterdir()] == ["part"]


def test_the_memory_of_a_snapshot_serves_again():
    snapshot = Snapshot()
    first = snapshot.data(snapshot.take({"a": captured(np.ones(4), "a")}))
    second = snapshot.data(snapshot.take({"a": captured(np.zeros(3), "a")}))
    assert np.shares_memory(first, second)
    assert second.size == 24


@given(st.dictionaries(st.text(), st.integers(0, 1000)), st.integers(1, 8))
def test_shares_have_each_tensor_once_and_are_even(sizes, count):
    dealt = shares(sizes, count)
    assert sorted(name for share in dealt for name in share) == sorted(sizes)
    filled = [sum(sizes[name] for name in share) for share in dealt]
    assert max(filled) - min(filled) <= max(sizes.values(), default=0)
    assert dealt == shares(dict(reversed(sizes.items())), count)
