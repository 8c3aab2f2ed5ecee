"""Random numbers in a step that is tried: each rank draws them for the whole batch, and takes its rows.

The copy records each draw: the operation, the shapes of its arguments, the other arguments. A rank at the same draw
compares the shapes, which shows the dimension that counts the samples of its part. It then draws the numbers for all
samples and takes its own rows. A draw that does not match makes the trial void: it shows nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from distrun.auto.torch.parts import Part
from distrun.auto.torch.trial import differences

Draw = tuple[str, list[Any]]
"""The name of an operation, and its arguments: the shapes of tensors, and other values as they are."""
_HALF = (torch.float16, torch.bfloat16)


def is_possible() -> bool:
    """Whether draws can be followed: the script is not inside a dispatch mode of its own."""
    return _get_current_dispatch_mode() is None


class _Mode(TorchDispatchMode):
    is_paused = False
    """Whether draws are temporarily not followed."""

    def begin(self) -> None:
        """Enter the mode, for the body of the script's loop."""
        self.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Leave the mode, unless the script is inside another one that it has entered since."""
        if _get_current_dispatch_mode() is self:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]


class Recording(_Mode):  # type: ignore[no-untyped-call]
    """The mode of the copy: it records draws."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.draws: list[Draw] = []
        self.tolerance = differences.EXACT
        """The relative difference that rounding explains, by the least exact type of number that was used."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if _draws(func, args, kwargs or {}) and not self.is_paused:
            self.draws.append(_described(func, args, kwargs or {}))
        if isinstance(result, Tensor) and result.dtype in _HALF:
            self.tolerance = differences.ROUNDED
        if self.tolerance == differences.EXACT and any(isinstance(each, Tensor) and each.is_cuda for each in args):
            self.tolerance = differences.TF32 if _may_be_tf32(str(func)) else differences.EXACT
        return result


class Replaying(_Mode):  # type: ignore[no-untyped-call]
    """The mode of a rank: it repeats the copy's draws."""

    def __init__(self, draws: Sequence[Draw], part: Part, draw_alone: Callable[[], object]) -> None:
        """`draw_alone` is called when the trial becomes void. After that, this rank draws from its own stream."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._draw_alone = draw_alone
        self._draws = list(draws)
        self._part = part
        self._place = 0
        self.is_void = False
        """Whether a draw was not understood."""
        self.refused = ""
        """A clause about a draw that a single process would have made in another way. Empty if there is none."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.is_void or self.is_paused or not _draws(func, args, kwargs):
            return func(*args, **kwargs)
        draw = self._draws[self._place] if self._place < len(self._draws) else None
        self._place += 1
        mine = _described(func, args, kwargs)
        is_alike = draw is not None and draw[0] == mine[0] and len(draw[1]) == len(mine[1])
        is_known = is_alike and _dropout(func, args, kwargs) is None  # a kernel with dropout draws in backward() again
        dims = self._dims(draw[1], mine[1]) if draw is not None and is_known else None
        # A draw that does not depend on the batch voids it as well: without a trial, each rank draws its own numbers.
        if draw is None or not dims:
            self.is_void = True
            self._draw_alone()
        elif -1 in dims.values():
            self.refused = f"it draws by index among the samples of the batch ({_name(func)})"
        elif kwargs.get("generator") is not None:
            self.refused = f"it draws for its samples from a torch.Generator of its own ({_name(func)})"
        else:
            return self._drawn(func, args, kwargs, dims, draw[1])
        return func(*args, **kwargs)

    def _dims(self, whole: Sequence[Any], own: Sequence[Any]) -> dict[int, int] | None:
        """Return, by position, the dimension that counts samples of each argument that differs from the copy's.

        It is -1 for a bound, such as the length of a permutation. None if anything else differs.
        """
        pairs = enumerate(zip(whole, own, strict=True))
        dims: dict[int, Any] = {place: self._dim(all_, mine) for place, (all_, mine) in pairs if all_ != mine}
        return None if None in dims.values() else dims

    def _dim(self, whole: Any, own: Any) -> int | None:
        """Return the only dimension where two shapes differ as part and batch do, or -1 for two numbers that do."""
        batch, size = sum(self._part.sizes), self._part.size
        if isinstance(whole, int) and isinstance(own, int):
            return -1 if own * batch == whole * size else None
        if not (isinstance(whole, list) and isinstance(own, list) and len(whole) == len(own)):
            return None
        dims = [dim for dim, (all_, mine) in enumerate(zip(whole, own, strict=True)) if all_ != mine]
        if len(dims) != 1 or own[dims[0]] * batch != whole[dims[0]] * size or own[dims[0]] % size:
            return None
        return dims[0]

    def _drawn(self, func: Any, args: Any, kwargs: Any, dims: dict[int, int], shapes: list[Any]) -> Any:
        """Draw for the whole batch, and return this rank's rows."""
        given = list(args)
        first = min(dims)
        for place, dim in dims.items():
            value = given[place] if place < len(given) else None
            if isinstance(value, Tensor):
                own = value.shape[dim]
                rows = (torch.arange(shapes[place][dim]) - self._start(own)) % own
                given[place] = _laid_out(value.index_select(dim, rows.to(value.device)), like=value)
            elif place < len(given):
                given[place] = list(shapes[place])
        result = func(*given, **kwargs)
        dim, extent = dims[first], shapes[first][dims[first]]
        own = extent * self._part.size // sum(self._part.sizes)

        def rows_of(value: Any) -> Any:
            if not isinstance(value, Tensor) or value.dim() <= dim or value.shape[dim] != extent:
                return value
            return value.narrow(dim, self._start(own), own).contiguous()

        if func._schema.is_mutable:
            args[0].copy_(rows_of(result))
            return args[0]
        return tuple(map(rows_of, result)) if isinstance(result, (tuple, list)) else rows_of(result)

    def _start(self, own: int) -> int:
        """Return the index of this rank's first row, given its number of rows (`own`)."""
        return sum(self._part.sizes[: self._part.rank]) * own // self._part.size


def _laid_out(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a copy of a tensor with the memory order of `like`, because numbers are drawn in that order."""
    order = sorted(range(like.dim()), key=lambda dim: -like.stride()[dim])
    return torch.empty_permuted(tensor.shape, order, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _may_be_tf32(operation: str) -> bool:
    """Whether an operation on a GPU may round to the 10 bits of TF32."""
    try:
        by_cudnn = torch.backends.cudnn.allow_tf32 and ("conv" in operation or "_rnn" in operation)
        return bool(torch.backends.cuda.matmul.allow_tf32 or by_cudnn)
    except RuntimeError:  # the script has used torch's newer settings, and these cannot be read then
        return True


def _draws(func: Any, args: Sequence[Any], kwargs: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags and _dropout(func, args, kwargs) != 0


def _dropout(func: Any, args: Sequence[Any], kwargs: Any) -> float | None:
    """Return the dropout rate of a kernel that has dropout among others, such as attention, None for other kernels."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name in ("dropout", "dropout_p"):
            given = args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)
            return float(given)
    return None


def _name(func: Any) -> str:
    return str(func).split(".")[1]


def _described(func: Any, args: Sequence[Any], kwargs: Any) -> Draw:
    return str(func), list(_values([*args, *(value for _, value in sorted(kwargs.items()))]))


def _values(args: Sequence[Any]) -> Iterator[Any]:
    for value in args:
        if isinstance(value, Tensor):
            yield list(value.shape)
        elif isinstance(value, (list, tuple)):
            yield [int(each) if isinstance(each, int) else repr(each) for each in value]
        elif isinstance(value, torch.Generator):
            yield "generator"
        elif type(value) is int:
            yield value
        else:
            yield repr(value)
