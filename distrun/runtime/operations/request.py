"""A request: what one rank asks all ranks to do together, and its encoding in a message."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from distrun.runtime.operations.dtypes import ELEMENT_TYPES
from distrun.runtime.operations.reduction import Average, ReduceOp

Shape = tuple[int, ...]

CPU, CUDA = "cpu", "cuda"
"""Where the tensors of a request are: in host memory, or on the ranks' GPUs."""


ADD_PROCESS_SET, REMOVE_PROCESS_SET = "add_process_set", "remove_process_set"
"""Kinds of operations. The one shape is the ranks of a set to register, or the number of the set to remove."""


FORM_PROCESS_SET, DISSOLVE_PROCESS_SET = "form_process_set", "dissolve_process_set"
"""Kinds for sets that their own ranks form. These alone submit the request, and all ranks of the job execute it."""


JOIN = "join"
"""The kind of the request that announces that this rank has reached the end of its data."""
JOIN_NAME = "join()"
"""The name of that request: a rank can join a process set only once at a time."""


_NAMELESS = (ADD_PROCESS_SET, REMOVE_PROCESS_SET, JOIN)  # only one operation of each kind is under way at a time


class Request(NamedTuple):
    """Everything the ranks of a process set must agree on before an operation runs.

    `shapes` has one shape per tensor of a group, and just one for a single tensor. A dimension that may differ between
    ranks (the first one of allgather and alltoall) is written as -1.
    """

    kind: str
    name: str | None
    dtype: str
    shapes: tuple[Shape, ...]
    op: ReduceOp = Average
    root: int = -1
    prescale: float = 1.0
    postscale: float = 1.0
    process_set: int = 0
    device: str = CPU
    wire: str = ""
    """The type of elements on the way between hosts. Empty: the job's setting."""

    @property
    def nbytes(self) -> int:
        """The bytes of the tensors. A dimension that may differ between ranks counts as one."""
        return sum(map(abs, map(math.prod, self.shapes))) * ELEMENT_TYPES[self.dtype].storage.itemsize

    def encode(self, site: str) -> bytes:
        """Encode the request as a message. `site` is the call site in user code."""
        return json.dumps([site, *self]).encode()

    @classmethod
    def decode(cls, message: bytes) -> tuple[Request, str]:
        """Return the request and the call site from a message made by `encode`."""
        site, kind, name, dtype, shapes, op, *rest = json.loads(message)
        return cls(kind, name, dtype, tuple(tuple(shape) for shape in shapes), ReduceOp(op), *rest), site


AGREED = ("kind", "device", "dtype", "shapes", "op", "root", "prescale", "postscale", "wire")
"""The fields that a mismatch error names, the most useful first."""


def describe_field(request: Request, field: str) -> str:
    """A field's value as an error message shows it."""
    value = getattr(request, field)
    if field != "shapes":
        return str(value)
    shown = [_describe_shape(shape) for shape in value[:4]]
    return ", ".join(shown) + (f" and {len(value) - 4} more" if len(value) > 4 else "")


def _describe_shape(shape: Shape) -> str:
    return "[" + ", ".join("*" if extent < 0 else str(extent) for extent in shape) + "]"


def first_difference(requests: Sequence[Request]) -> int | None:
    """The index of the first tensor of a group whose shapes differ. None if the numbers of tensors differ."""
    if len({len(request.shapes) for request in requests}) > 1:
        return None
    shapes = zip(*[request.shapes for request in requests], strict=True)
    return next((place for place, those in enumerate(shapes) if len(set(those)) > 1), None)


def title(kind: str, name: str | None, sequence: int | None = None) -> str:
    """The name of an operation in messages: `allreduce 'grad.0'` or `unnamed allreduce (number 17)`."""
    if kind in _NAMELESS:
        return kind
    if name is not None:
        return f"{kind} {name!r}"
    return f"unnamed {kind}" if sequence is None else f"unnamed {kind} (number {sequence})"


_FROM_OP_ON = slice(Request._fields.index("op"), None)


def fusion_key(request: Request) -> Hashable | None:
    """The key that requests must share to be fused into one operation. None if the request cannot be fused."""
    if request.kind != "allreduce":
        return None
    return (request.dtype, *tuple(request)[_FROM_OP_ON])


def rows_of(shape: Shape, size: int) -> list[int]:
    """The rows of dimension 0 that each rank keeps in a reducescatter: split evenly, the first ranks get one more."""
    rows, over = divmod(shape[0], size)
    return [rows + (rank < over) for rank in range(size)]


def counts_of(shape: Shape, size: int) -> list[int]:
    """The elements that each rank keeps in a reducescatter. A row without elements counts as one element."""
    row = math.prod(shape[1:]) or 1
    return [rows * row for rows in rows_of(shape, size)]
