"""The files of a checkpoint: each part is one, in the safetensors format.

    8 bytes      the length of the header, little-endian
    header       JSON: for each tensor its dtype, shape and place in the data; texts of distrun in `__metadata__`
    data         the bytes of all tensors, without gaps

Any program that reads safetensors reads the tensors. `__metadata__` has `checksum`, the CRC-32 of the whole file with
eight zeros in its place, and the notes of `manager`. Format: https://github.com/huggingface/safetensors
"""

from __future__ import annotations

import json
import os
import secrets
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from distrun.checkpoint.numpy_arrays import Bytes, Capture
from distrun.errors import CheckpointError

_CHECKSUM = "checksum"
_ZEROS = "0" * 8
_CHUNK = 4 << 20
"""Bytes that are added to the checksum and written at a time: they are still in the processor's cache then."""
_DTYPES = {
    **{f"{kind}{bits}": f"{kind[0].upper()}{bits}" for kind in ("float", "int", "uint") for bits in (8, 16, 32, 64)},
    **{"bool": "BOOL", "bfloat16": "BF16", "complex64": "C64"},
    **{"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"},
}
"""The format's names of dtypes. Tensors of other dtypes are bytes, U8, in it, and their dtypes are in the notes."""


@dataclass(frozen=True)
class Entry:
    """A tensor in the header: its dtype and shape there, and its place in the data, in bytes."""

    name: str
    dtype: str
    shape: list[int]
    start: int
    stop: int


@dataclass(frozen=True)
class Header:
    """The header of a part."""

    metadata: dict[str, str]
    entries: list[Entry]
    length: int
    """The number of bytes before the data."""

    @property
    def size(self) -> int:
        """The size of the whole file, in bytes."""
        return self.length + (self.entries[-1].stop if self.entries else 0)


def layout(tensors: Mapping[str, Capture]) -> list[Entry]:
    """Return the places of tensors in the data: the largest elements first, so that all are aligned."""
    entries: list[Entry] = []
    stop = 0
    for name in sorted(tensors, key=lambda name: (-_element_size(tensors[name]), name)):
        start, stop = stop, stop + tensors[name].size
        note = tensors[name].note
        dtype = _DTYPES.get(note["dtype"])
        entries.append(Entry(name, dtype or "U8", note["shape"] if dtype else [stop - start], start, stop))
    return entries


def _element_size(tensor: Capture) -> int:
    """Return the largest power of two that divides the size of an element, in bytes."""
    count = int(np.prod(tensor.note["shape"], dtype=np.int64))
    each = tensor.size // count if count else 1
    return each & -each


# Writing --------------------------------------------------------------------------------------------------------------


def write(path: Path, metadata: Mapping[str, str], entries: list[Entry], data: Bytes) -> None:
    """Write a part, such that the file exists completely or not at all, whenever the machine stops.

    Raises:
        OSError: it cannot be written. No file is left then.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb", buffering=0) as file:
            _write(file, metadata, entries, data)
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _write(file: BinaryIO, metadata: Mapping[str, str], entries: list[Entry], data: Bytes) -> None:
    checksum = zlib.crc32(_encode(metadata, entries, _ZEROS))
    length = file.write(_encode(metadata, entries, _ZEROS))
    for start in range(0, data.size, _CHUNK):
        chunk = data[start : start + _CHUNK].data
        checksum = zlib.crc32(chunk, checksum)
        while chunk:  # an unbuffered file may write less
            chunk = chunk[file.write(chunk) :]
    header = _encode(metadata, entries, f"{checksum:08x}")
    assert len(header) == length
    file.seek(0)
    file.write(header)


def _encode(metadata: Mapping[str, str], entries: list[Entry], checksum: str) -> bytes:
    header: dict[str, Any] = {"__metadata__": {_CHECKSUM: checksum, **metadata}}
    for entry in entries:
        header[entry.name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [entry.start, entry.stop]}
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 64)  # so that the data is aligned in the file
    return len(text).to_bytes(8, "little") + text


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Reading --------------------------------------------------------------------------------------------------------------


def read_header(path: Path) -> Header:
    """Return the header of a part, after checking the file's size against it. The checksum is not checked.

    Raises:
        CheckpointError: it is damaged.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return _read_header(file, path)[0]


def read(path: Path) -> tuple[Header, dict[str, Bytes]]:
    """Return the header of a part, and the bytes of each tensor in an array of its own.

    Raises:
        CheckpointError: it is damaged.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        header, text = _read_header(file, path)
        stated = header.metadata[_CHECKSUM]
        found = zlib.crc32(text.replace(f'"{_CHECKSUM}":"{stated}"'.encode(), f'"{_CHECKSUM}":"{_ZEROS}"'.encode(), 1))
        tensors = {}
        for entry in header.entries:
            tensors[entry.name] = data = np.empty(entry.stop - entry.start, np.uint8)
            for start in range(0, data.size, _CHUNK):
                chunk = data[start : start + _CHUNK].data
                if file.readinto(chunk) != len(chunk):
                    raise CheckpointError(f"{path} is damaged: it ends too early")
                found = zlib.crc32(chunk, found)
    if f"{found:08x}" != stated:
        raise CheckpointError(f"{path} is damaged: its checksum is {found:08x}, and should be {stated}")
    return header, tensors


def _read_header(file: BinaryIO, path: Path) -> tuple[Header, bytes]:
    size = os.fstat(file.fileno()).st_size
    prefix = file.read(8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length > size - 8:
        raise CheckpointError(f"{path} is damaged: it has {size} bytes, too few for its header")
    text = file.read(length)
    try:
        header = _decoded(json.loads(text), length + 8)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged: its header cannot be read") from error
    if size != header.size:
        raise CheckpointError(f"{path} is damaged: it has {size} bytes, and should have {header.size}")
    return header, prefix + text


def _decoded(found: dict[str, Any], length: int) -> Header:
    metadata = found.pop("__metadata__")
    entries, stop = [], 0
    for name, entry in found.items():
        start, (begin, stop) = stop, entry["data_offsets"]
        if begin != start or stop < start:
            raise ValueError("the data has gaps")
        entries.append(Entry(name, entry["dtype"], entry["shape"], start, stop))
    if not isinstance(metadata[_CHECKSUM], str):
        raise TypeError("the checksum is no text")
    return Header(metadata, entries, length)
