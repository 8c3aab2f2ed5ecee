"""Following the tensors that are computed from a batch, operation by operation, as torch's Python functions are called.

For each tensor, the mode keeps which dimension counts the samples, and which statistics of the part have gone into it.
The script's tensors are held by weak references, so they are not kept alive. A result that cannot be followed is
unknown, and errors in here are suppressed.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from distrun.auto.torch.session import is_shared
from distrun.auto.torch.statistics import numbers, rows

_MARK = "distrun.auto.statistic"
_UNFOLLOWED = {"grad", "backward", "unique_consecutive", "nonzero", "argwhere", "data_ptr"}
_OWN = Path(__file__).parents[3]
_TORCH = Path(torch.__file__).parent
_NAMES = {"sum": "the sum", "mean": "the mean", "std": "the standard deviation", "var": "the variance"}
_NAMES |= {"max": "the maximum", "min": "the minimum", "amax": "the maximum", "amin": "the minimum"}
_NAMES |= {"norm": "the norm", "topk": "a choice (topk)", "bincount": "a count", "unique": "a count"}


@dataclass(frozen=True, slots=True, eq=False)
class Statistic:
    """A tensor that was computed across the samples of the part, such as their mean."""

    words: str
    extreme: Tensor | None = None
    """Its value, if it is a maximum or minimum: if all parts have the same one, the batch has it too."""


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """Facts about a tensor."""

    dim: int | None = None
    """The dimension that counts samples."""
    statistics: tuple[Statistic, ...] = ()
    """The statistics of the part that have gone into it."""
    is_free: bool = False
    """Whether the graph does not show that the statistics have gone into it."""
    is_mixed: bool = False
    """Whether a statistic was combined with samples: each sample's value depends on all samples."""
    is_additive: bool = True
    """Whether the batch's statistic is the sum or the average of the parts' statistics."""


class Following(TorchFunctionMode):
    """A mode in which torch calls `__torch_function__` for each of its Python functions."""

    def __init__(self) -> None:
        super().__init__()
        self.is_on = False
        self.is_entered = False
        self.size = 0
        """The samples of this rank's part."""
        self._states: dict[int, tuple[weakref.ref[Tensor], TensorFacts]] = {}

    def begin(self, batch: Any, size: int) -> None:
        """Follow the tensors of a batch. Each has its `size` samples in the first dimension or the second."""
        if not self._enter():
            return
        self.is_on, self.size = True, size
        with suppress(Exception):  # of a batch of the script's own class
            parts = batch if isinstance(batch, (Tensor, Mapping, tuple, list)) else vars(batch)
            for tensor in _tensors(parts, depth=4):
                dims = [dim for dim, extent in enumerate(tensor.shape[:2]) if extent == size]
                if dims:
                    self._know(tensor, TensorFacts(dims[0]))

    def end(self) -> None:
        """Stop following, and leave the mode unless the script has entered another one inside it."""
        self.is_on = False
        self._states.clear()
        if self.is_entered and _innermost() is self:
            self.is_entered = False
            self.__exit__(None, None, None)

    def _enter(self) -> bool:
        if not self.is_entered and threading.current_thread() is threading.main_thread() and not _has_modes():
            self.__enter__()  # type: ignore[no-untyped-call]
            self.is_entered = True
        return self.is_entered

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call one of torch's functions, and note what is known about its result."""
        result = func(*args, **(kwargs or {}))
        if self.is_on and isinstance(result, (bool, int, float)):
            return self._read(_name(func), args, result)
        if self.is_on and (isinstance(result, (Tensor, tuple, list)) or result is None):
            with suppress(Exception):  # an argument in a form that is not known here: the result is not followed
                self._follow(_name(func), args, kwargs or {}, result)
        return result

    def _read(self, name: str, args: Sequence[Any], value: Any) -> Any:
        """Return a Python number that was read from a tensor, marked if it is a statistic of the part."""
        state = self._state(args[0]) if args and isinstance(args[0], Tensor) else None
        words = next((each.words for each in state.statistics if each.extreme is None), "") if state else ""
        if not words or not is_shared() or name not in ("bool", "item", "tolist"):
            return value
        if isinstance(value, bool) and not numbers.is_asserted():
            numbers.refuse_decision(words)
        return numbers.of(value, words)

    def _know(self, tensor: Tensor, state: TensorFacts) -> None:
        self._states[id(tensor)] = weakref.ref(tensor), state

    def _state(self, tensor: Tensor) -> TensorFacts | None:
        found = self._states.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None

    def _follow(self, name: str, args: Sequence[Any], options: Mapping[str, Any], result: Any) -> None:
        given = list(_tensors((args, options), depth=3))
        known = [(tensor, state) for tensor in given if (state := self._state(tensor)) is not None]
        if not known or name in _UNFOLLOWED:
            return
        if name == "detach" and given[0].dim() == 0 and given[0].requires_grad:  # a loss: read as the whole batch's
            return
        if name == "setitem":
            result = args[0]
        results = [result] if isinstance(result, Tensor) else [each for each in result if isinstance(each, Tensor)]
        for which, tensor in enumerate(results):
            if name == "unique":
                state = _of_unique(args, options, known, which, len(results))
            else:
                state = self._after(name, args, options, given, known, tensor)
            if tensor.requires_grad and tensor.grad_fn is not None:
                _mark(tensor, known, state)
            if state.dim is not None or state.statistics:
                self._know(tensor, state)
            else:
                self._states.pop(id(tensor), None)

    def _after(
        self,
        name: str,
        args: Sequence[Any],
        options: Mapping[str, Any],
        given: Sequence[Tensor],
        known: Sequence[tuple[Tensor, TensorFacts]],
        result: Tensor,
    ) -> TensorFacts:
        """Return the state of an operation's result."""
        source, dim = next(((tensor, state.dim) for tensor, state in known if state.dim is not None), (None, None))
        states = [state for _, state in known if state.statistics]
        if name.startswith(rows.VALUELESS):
            states = []
        statistics = tuple(dict.fromkeys(each for state in states for each in state.statistics))
        is_free = any(each.is_free for each in states) or not result.requires_grad
        is_additive = all(each.is_additive for each in states)
        is_mixed = any(each.is_mixed for each in states)
        if source is None or dim is None:
            return TensorFacts(None, statistics, is_free, is_mixed, is_additive)
        shape = tuple(source.shape)
        shapes = [tuple(each.shape) for each in given]
        is_product = rows.contracts(name, shapes, [getattr(self._state(each), "dim", None) for each in given])
        is_reduced = is_product or rows.reduces(name, args, options, shape, dim)
        place = None if is_reduced else rows.place(name, args, options, shape, dim, tuple(result.shape))
        is_reduced = is_reduced or (place is None and rows.may_reduce(name, result))
        if is_reduced:
            if name in rows.EXTREMES and not source.is_floating_point():  # of lengths or numbers of classes
                return TensorFacts(None, statistics, is_free, False, is_additive)
            is_additive = is_additive and not is_mixed and name in rows.ADDITIVE
            extreme = result.data.clone() if name in rows.EXTREMES else None
            return TensorFacts(None, (*statistics, Statistic(_described(name), extreme)), is_free, False, is_additive)
        if rows.mixes(name, args, options, shape, dim):
            return TensorFacts(place, (*statistics, Statistic(_described(name))), is_free, True, False)
        return TensorFacts(place, statistics, is_free, is_mixed or bool(statistics), is_additive)


def marked(roots: Sequence[Tensor]) -> list[Statistic]:
    """Return the statistics that have gone into any of the losses without a gradient."""
    found: dict[Statistic, None] = {}
    open_nodes: list[Any] = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen = set(open_nodes)
    while open_nodes:
        node = open_nodes.pop()
        found.update(dict.fromkeys(node.metadata.get(_MARK, ())))
        following = {each for each, _ in node.next_functions if each is not None} - seen
        seen |= following
        open_nodes += following
    return list(found)


def _mark(result: Tensor, known: Sequence[tuple[Tensor, TensorFacts]], state: TensorFacts) -> None:
    """Mark the node of a result that has taken in a statistic of the part which the graph does not show.

    A number that is divided by a sum or a count is not marked: the graph shows the division.
    """
    has_rows = state.dim is not None or any(each.dim is not None for _, each in known)
    taken = [
        statistic
        for _, each in known
        if each.is_free and (each.is_mixed or has_rows or not each.is_additive)
        for statistic in each.statistics
    ]
    if taken:
        node: Any = result.grad_fn
        node.metadata[_MARK] = taken


def _of_unique(
    args: Sequence[Any], options: Mapping[str, Any], known: Sequence[tuple[Tensor, TensorFacts]], which: int, count: int
) -> TensorFacts:
    """Return the state of one result of `unique`. Its values are not followed further, their counts are a statistic."""
    has_counts = bool(options.get("return_counts", args[3] if len(args) > 3 else False))
    if known[0][1].dim is None or which == 0:
        return TensorFacts()
    if has_counts and which == count - 1:
        return TensorFacts(None, (Statistic(_described("unique")),), True)
    return TensorFacts(known[0][1].dim)


def _name(func: Any) -> str:
    name = getattr(func, "__name__", "")
    if name in ("__get__", "__set__"):
        name = getattr(getattr(func, "__self__", None), "__name__", name)
    return str(name).strip("_")


def _described(name: str) -> str:
    """Return words for a statistic, with the line of the script that has computed it."""
    what = f"{_NAMES.get(name, f'a statistic ({name})')} of the batch's samples"
    frame = sys._getframe(1)
    while frame.f_back is not None:
        path = Path(frame.f_code.co_filename)
        if path.name[0] != "<" and not path.is_relative_to(_OWN) and not path.is_relative_to(_TORCH):
            return f"{what} ({path.name}:{frame.f_lineno})"
        frame = frame.f_back
    return what


def _has_modes() -> bool:
    """Whether the script is inside a mode other than a default device. It may leave that before the batch ends."""
    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    count = torch._C._len_torch_function_stack()
    return count > 1 or (count == 1 and _innermost() is not default)


def _innermost() -> Any:
    return torch.overrides._get_current_function_mode()  # type: ignore[no-untyped-call]


def _tensors(value: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, (Mapping, tuple, list)):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(each, depth - 1)
