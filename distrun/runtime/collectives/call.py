"""The arguments of a collective, checked in one place for numpy arrays, arrays on a GPU, torch tensors and graphs.

A `Call` holds all arguments but the tensors. `Call.request` adds the tensors' dtype, shapes and device, and returns the
`Request` that the ranks must agree on. The tensors' memory and the results are left to the modules of each library:
`tensors` (numpy), `on_gpu` (cupy), `distrun.torch.operations`, `distrun.graphs.prepared`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np

from distrun.contract import horovod
from distrun.errors import UsageError
from distrun.runtime.operations.handle import AnyHandle, Handle, HandleGroup
from distrun.runtime.operations.reduction import Average, ReduceOp, Sum, check_op
from distrun.runtime.operations.request import CPU, Request, Shape
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.runtime.process_sets.process_sets import by_id
from distrun.runtime.world import world

Tensor = TypeVar("Tensor")

MOVES_ROWS = ("allgather", "alltoall", "reducescatter")
"""The kinds that divide or join tensors along their first dimension."""


_new = tuple.__new__
"""Makes a named tuple from a tuple of all its fields, in half the time that the class itself takes. Every operation
makes two."""


class Call(NamedTuple):
    """A call of a collective: all its arguments but the tensors."""

    kind: str
    name: str | None = None
    """None: the ranks match the call by its position among the unnamed calls."""
    op: ReduceOp = Average
    root: int = -1
    prescale: float = 1.0
    postscale: float = 1.0
    process_set: ProcessSet = global_process_set
    wire: str = ""
    """The type in which elements travel between hosts. Empty: the job's setting."""
    site: str = ""
    """The line of user code that makes the call, where the stack does not show it: a graph runs in a thread of its
    framework."""
    is_gradient: bool = False
    """Whether it reduces gradients, step after step, so that error feedback can add what rounding has lost to the next
    step."""
    gradients: str = ""
    """The name of the list that these gradients belong to. Empty: their residuals end with this world."""
    first: int = 0
    """The index of the first of them in this list. The others follow it."""

    def named(self, suffix: str) -> Call:
        """Return this call with `.suffix` behind its name. An unnamed call stays unnamed."""
        return self._replace(name=self.name and f"{self.name}.{suffix}")

    def check(self, dtype: str) -> None:
        """Refuse an operator that is not defined for elements of `dtype` or for this kind.

        Raises:
            UsageError: `op` is not a reduce op, is not defined for `dtype`, or not offered for a reducescatter.
        """
        op = self.op
        if op is Average or op is Sum or self.kind not in ("allreduce", "reducescatter"):
            return
        check_op(op, dtype)
        if self.kind == "reducescatter":
            raise UsageError(f"reducescatter with op={op} is not offered: use Sum or Average, or allreduce")

    def request(self, dtype: str, shapes: tuple[Shape, ...], device: str = CPU) -> Request:
        """Return what the ranks must agree on, for tensors of one dtype on one device.

        Allgathers and alltoalls leave the extent of dimension 0 open, as -1: the ranks may differ in it.

        Raises:
            UsageError: the operator does not fit (see `check`), the kind moves rows and a tensor is 0-dimensional, or
                the name is not a string.
        """
        kind, name, op, root, prescale, postscale, process_set, wire, *_ = self
        if name is not None and not isinstance(name, str):
            raise UsageError(f"name={name!r} is not a string: give an operation's name as one, or leave it out")
        if op is not Average and op is not Sum:
            self.check(dtype)
        if kind != "allreduce" and kind in MOVES_ROWS:
            if not all(shapes):
                check_rows(kind, shapes)
            if kind != "reducescatter":
                shapes = tuple([(-1, *shape[1:]) for shape in shapes])
        set_id = 0 if process_set is global_process_set else _id_of(process_set)
        return _new(
            Request, (kind, name, dtype, shapes, op, root, float(prescale), float(postscale), set_id, device, wire)
        )

    def encode(self) -> str:
        """Return the call as a string, which a node of a graph can hold as an attribute."""
        return json.dumps(self._replace(process_set=self.process_set.process_set_id))  # type: ignore[arg-type]

    @staticmethod
    @lru_cache(maxsize=4096)
    def decode(text: str) -> Call:
        """Return the call that `encode` turned into `text`."""
        call = Call(*json.loads(text))
        return call._replace(op=ReduceOp(call.op), process_set=by_id(call.process_set))  # type: ignore[arg-type]


world.on_leaving(Call.decode.cache_clear)  # in the next world a process set's number may mean another set


def _id_of(process_set: ProcessSet) -> int:
    """Return the number of a process set that includes this rank."""
    if not isinstance(process_set, ProcessSet):
        raise UsageError(f"process_set={process_set!r} is not a distrun.ProcessSet: see distrun.add_process_set")
    process_set.check_included()
    return process_set.number


def reduction_call(
    kind: str, name: str | None, op: ReduceOp, prescale: float, postscale: float, process_set: ProcessSet
) -> Call:
    """Return the call of an allreduce or a reducescatter."""
    return _new(Call, (kind, name, op, -1, prescale, postscale, process_set, "", "", False, "", 0))


def moving_call(kind: str, name: str | None, process_set: ProcessSet) -> Call:
    """Return the call of an allgather or an alltoall."""
    return _new(Call, (kind, name, Average, -1, 1.0, 1.0, process_set, "", "", False, "", 0))


def broadcast_call(name: str | None, root_rank: int, process_set: ProcessSet, site: str = "") -> Call:
    """Return the call of a broadcast.

    Raises:
        UsageError: `root_rank` is not a rank of the process set.
    """
    return _new(
        Call,
        ("broadcast", name, Average, process_set.check_root(root_rank), 1.0, 1.0, process_set, "", site, False, "", 0),
    )


def reducescatter_gradient_factor(call: Call) -> float:
    """Return the factor that the backward pass of a reducescatter multiplies the gathered gradients by.

    The derivative is the factor of its sum. Horovod multiplies by the number of ranks once more, and in Horovod's mode
    so does distrun.
    """
    factor = call.prescale * call.postscale
    if horovod.is_on(os.environ):
        factor *= call.process_set.size()
    return factor / call.process_set.size() if call.op is Average else factor


# Rows -----------------------------------------------------------------------------------------------------------------


def check_rows(kind: str, shapes: Iterable[Sequence[int]]) -> None:
    """Refuse tensors without a first dimension.

    Raises:
        UsageError: a shape is ().
    """
    if not all(shapes):
        raise UsageError(f"{kind} divides the first dimension, and a 0-dimensional tensor has none: reshape it to (1,)")


def row_size(shape: Sequence[int]) -> int:
    """Return the number of elements in a row of a tensor: one index of its first dimension."""
    return math.prod(shape[1:])


def rows_in(elements: int, shape: Sequence[int]) -> int:
    """Return the number of rows in `elements` of flat storage. A row without elements travels as one element."""
    return elements // (row_size(shape) or 1)


def rows_per_rank(rows: int, splits: Any, size: int) -> list[int]:
    """Return the number of rows that an alltoall sends to each of `size` ranks: `splits` or, if None, an even share.

    Raises:
        UsageError: the splits do not fit the rows or the ranks.
    """
    if splits is None:
        if rows % size:
            raise UsageError(f"alltoall of {rows} rows among {size} ranks does not come out even: give `splits`")
        return [rows // size] * size
    wanted = np.asarray(splits)
    if wanted.shape != (size,) or not np.issubdtype(wanted.dtype, np.integer) or (wanted < 0).any():
        raise UsageError(f"splits={splits!r} must be {size} whole numbers >= 0, one per rank")
    if wanted.sum() != rows:
        raise UsageError(
            f"splits={wanted.tolist()} sum to {wanted.sum()}, and the tensor has {rows} rows: they must agree"
        )
    return [int(count) for count in wanted]


def elements_per_rank(shape: Sequence[int], splits: Any, size: int) -> list[int]:
    """Return the number of elements of flat storage that an alltoall of a tensor sends to each rank (see
    `rows_per_rank`)."""
    row = row_size(shape) or 1
    return [rows * row for rows in rows_per_rank(shape[0], splits, size)]


def received_rows(handle: Handle, index: int = 0) -> list[int]:
    """Return the number of rows that came from each rank, for the tensor at `index` of an allgather or alltoall that is
    done."""
    shape = handle.request.shapes[index]
    return [rows_in(count, shape) for count in handle.received[index]]


# Groups ---------------------------------------------------------------------------------------------------------------


def group_of(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the tensors of a group as a list.

    Raises:
        UsageError: there are none.
    """
    group = list(tensors)
    if not group:
        raise UsageError("a group needs at least one tensor, and this one is empty: leave the call out, on all ranks")
    return group


def start_group(
    tensors: Sequence[Tensor], kinds: Sequence[Hashable], call: Call, start: Callable[[Sequence[Tensor], Call], Handle]
) -> AnyHandle:
    """Start one operation for each kind of tensors in a group, and return one handle for all of them.

    Args:
        tensors: at least one.
        kinds: each tensor's dtype and device. `str(kind)` becomes part of the name: it must be the same on all ranks.
        call: the call of the whole group.
        start: starts the operation on the tensors of one kind. Its result is a list.
    """
    if len(set(kinds)) == 1:
        return start(tensors, call)
    groups: dict[Hashable, list[int]] = {}
    for place, kind in enumerate(kinds):
        groups.setdefault(kind, []).append(place)
    return HandleGroup(
        [
            (start([tensors[place] for place in places], call.named(str(kind))), places)
            for kind, places in groups.items()
        ]
    )
