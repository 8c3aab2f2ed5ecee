"""The arguments of the methods of a process group: the signatures by which they are given, and their checks.

torch and C++ pass lists of tensors and an options object. Scripts may also use the convenience overloads of torch's
`ProcessGroup`: tensors instead of lists, and the fields of the options by position or by name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch._C._profiler import _RecordFunctionFast
from torch.autograd import profiler

from distrun.errors import UsageError

Method = TypeVar("Method", bound=Callable[..., Any])

_OPTIONS = (
    c10d.AllgatherOptions, c10d.AllreduceCoalescedOptions, c10d.AllreduceOptions, c10d.AllToAllOptions,
    c10d.BarrierOptions, c10d.BroadcastOptions, c10d.GatherOptions, c10d.ReduceOptions, c10d.ReduceScatterOptions,
    c10d.ScatterOptions,
)  # fmt: skip
_ATTRIBUTES = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}


class ArgumentError(UsageError, RuntimeError, TypeError):
    """An argument of a collective or a message is impossible. torch's own backends raise any of these base classes."""


def check_lists(name: str, argument: object, depth: int) -> None:
    """Raise an ArgumentError unless an argument of the method `name` is a list of tensors, or with depth 2 a list of
    such lists. A tensor is not accepted as a list of its rows.
    """
    if type(argument) is not list and (isinstance(argument, Tensor) or not isinstance(argument, Sequence)):
        kind = f"tensor of shape {list(argument.shape)}" if isinstance(argument, Tensor) else type(argument).__name__
        raise ArgumentError(f"{name}() was given a {kind} where it takes a list of tensors: put it into a list")
    if depth > 1:
        for each in argument:
            check_lists(name, each, depth - 1)


def check_single(name: str, tensors: Sequence[object]) -> None:
    """Raise an ArgumentError unless a list for the method `name` has one element."""
    if len(tensors) != 1:
        raise ArgumentError(f"{name}() was given a list of {len(tensors)} elements: it takes one tensor of each rank")


def check_alike(dtype: torch.dtype, tensors: Iterable[Tensor | None]) -> None:
    """Raise an ArgumentError unless tensors are dense and have the dtype `dtype`."""
    for tensor in tensors:
        if tensor is None:
            continue
        if tensor.dtype is not dtype:
            raise ArgumentError(
                f"a collective was given tensors of {dtype} and of {tensor.dtype}: give inputs and outputs of one dtype"
            )
        if tensor.layout is not torch.strided:
            raise ArgumentError(f"a tensor of layout {tensor.layout} cannot travel by itself: use .to_dense()")


def check_one_each(tensors: Sequence[object], size: int) -> None:
    """Raise an ArgumentError unless a list of tensors has one for each of `size` ranks."""
    if len(tensors) != size:
        raise ArgumentError(f"a list of {len(tensors)} tensors does not fit {size} ranks: give one for each")


class Overload:
    """A convenience overload of a method."""

    def __init__(
        self,
        options: type[Any],
        tensors: Sequence[str],
        given: Sequence[str],
        required: Sequence[str] = (),
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            tensors: the arguments of the method, without its options. A tensor in place of a list stands for a list of
                one, and then all of these arguments must be tensors.
            given: the arguments that are fields of the options. Those in `required` have no default.
            renamed: arguments that have another name here than in the method.
        """
        self._options = options
        self._tensors = tensors
        self._names = (*tensors, *given)
        self._required = (*tensors, *required)
        self._renamed = renamed or {}

    def convert(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], lists: int) -> tuple[Any, ...]:
        """Return the arguments of the method `name` for those of the overload, or raise an ArgumentError."""
        bound = dict(zip(self._names, args, strict=False))
        named = {self._renamed.get(key, key): value for key, value in kwargs.items()}
        missing = [each for each in self._required if each not in bound and each not in named]
        if len(args) > len(self._names) or missing or set(named) - set(self._names) or set(named) & set(bound):
            raise ArgumentError(
                f"{name}() was given {len(args)} arguments by position and {list(kwargs)} by name: it takes "
                f"{', '.join(self._names)}, or {', '.join((*self._tensors, 'opts'))}"
            )
        bound |= named
        options = self._options()
        for key, attribute in _ATTRIBUTES.items():
            if bound.get(key) is not None:
                try:
                    setattr(options, attribute, bound[key])
                except TypeError:
                    raise ArgumentError(
                        f"{name}() was given {bound[key]!r} as {key!r}: give what torch.distributed takes there"
                    ) from None
        tensors = [bound[key] for key in self._tensors]
        is_single = any(isinstance(tensor, Tensor) for tensor in tensors[:lists])
        return (*([[tensor] for tensor in tensors] if is_single else tensors), options)


def collective(
    operator: str, title: str, lists: Sequence[int] = (), overload: Overload | None = None
) -> Callable[[Method], Method]:
    """Return a decorator for a collective, which checks its arguments and records it for torch's profiler.

    Args:
        operator: the name of torch's operator in the profiler.
        title: the name of the backend's operation in the profiler.
        lists: the depths of the nested lists of tensors that the first arguments must be.
        overload: another signature of the method.
    """
    names = f"c10d::{operator}", f"distrun:{title}"

    def decorate(method: Method) -> Method:
        @functools.wraps(method)  # C++ looks at the name of the code, which must not be the method's: see pybind11
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if overload is not None and not (args and isinstance(args[-1], _OPTIONS)) and kwargs.get("opts") is None:
                kwargs.pop("opts", None)
                args, kwargs = overload.convert(method.__name__, args, kwargs, len(lists)), {}
            for depth, argument in zip(lists, args, strict=False):
                check_lists(method.__name__, argument, depth)
            if not profiler._is_profiler_enabled:
                return method(self, *args, **kwargs)
            with _RecordFunctionFast(names[0]), _RecordFunctionFast(names[1]):
                return method(self, *args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


ALLREDUCE = Overload(c10d.AllreduceOptions, ["tensors"], ["op", "timeout"], renamed={"tensor": "tensors"})
REDUCE = Overload(c10d.ReduceOptions, ["tensors"], ["root", "op", "timeout"], ["root"], {"tensor": "tensors"})
BROADCAST = Overload(c10d.BroadcastOptions, ["tensors"], ["root", "timeout"], ["root"], {"tensor": "tensors"})
_TO_ONE = {"input_tensor": "input_tensors"}
_LISTS = ["output_tensors", "input_tensors"]
ALLGATHER = Overload(c10d.AllgatherOptions, _LISTS, ["timeout"], renamed=_TO_ONE)
GATHER = Overload(c10d.GatherOptions, _LISTS, ["root", "timeout"], ["root"], _TO_ONE)
_FROM_ONE = {"output_tensor": "output_tensors"}
SCATTER = Overload(c10d.ScatterOptions, _LISTS, ["root", "timeout"], ["root"], _FROM_ONE)
_PARTS = {"output": "output_tensors", "input": "input_tensors"}
REDUCE_SCATTER = Overload(c10d.ReduceScatterOptions, _LISTS, ["op", "timeout"], renamed=_PARTS)
_SPLITS = ["output", "input", "output_split_sizes", "input_split_sizes"]
ALL_TO_ALL_SINGLE = Overload(c10d.AllToAllOptions, _SPLITS, ["timeout"])
BARRIER = Overload(c10d.BarrierOptions, [], ["timeout"])
