"""Which dimension of a tensor counts the samples after an operation, and which operations reduce it. Pure.

Operations are named without underscores: `sum`, `add` (also for `add_`), `getitem`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

Shape = Sequence[int]

_BY_DIM = "sum nansum mean nanmean std var std_mean var_mean amax amin aminmax max min median nanmedian prod logsumexp"
_BY_SECOND = "norm linalg_norm linalg_vector_norm quantile nanquantile kthvalue topk"
REDUCTIONS = dict.fromkeys([*_BY_DIM.split(), "count_nonzero"], 1) | dict.fromkeys(_BY_SECOND.split(), 2)
"""Operations that reduce dimensions, with the position of `dim` among their arguments."""
MIXING = dict.fromkeys(["softmax", "log_softmax", "softmin", "cumsum", "cumprod", "logcumsumexp"], 1) | {"normalize": 2}
"""Operations that keep the shape, but make each element depend on all others along a dimension."""
COUNTS = {"bincount", "histc", "histogram", "cov", "corrcoef"}
CONTRACTIONS = {"matmul", "mm", "mv", "dot", "inner", "vdot", "addmm", "addmv", "einsum", "tensordot", "linear", "bmm"}
CONTRACTIONS |= {"scatter_add", "scatter_reduce", "index_add", "index_reduce", "chain_matmul", "linalg_multi_dot"}
ADDITIVE = {"sum", "nansum", "mean", "nanmean", "count_nonzero", "bincount", "histc", "histogram", "unique"}
ADDITIVE |= CONTRACTIONS | {"mse_loss", "l1_loss", "cross_entropy", "nll_loss", "binary_cross_entropy", "kl_div"}
"""Statistics whose value for the batch is the sum or the average of their values for its parts."""
EXTREMES = {"amax", "amin", "aminmax", "max", "min"}
VALUELESS = ("zeros", "ones", "empty", "rand", "arange", "new_zeros", "new_ones", "new_empty", "zero", "bernoulli")
"""Prefixes of the names of operations whose results do not depend on the values of tensors."""
_LAST = {"kthvalue", "topk"}  # `dim` is the last one by default
_KEEPING = {"split", "chunk", "tensor_split", "cat", "concat", "concatenate", "narrow", "index_select", "repeat", "pad"}
_KEEPING |= {"repeat_interleave", "unfold", "vstack", "hstack"}
_RESHAPING = {"view", "reshape", "flatten", "unflatten", "view_as", "reshape_as", "ravel"}


def reduces(name: str, args: Sequence[Any], options: Mapping[str, Any], shape: Shape, dim: int) -> bool:
    """Whether an operation reduces dimension `dim` of its first argument, which has this shape."""
    if name in COUNTS:
        return True
    if name not in REDUCTIONS or (len(args) > 1 and name in EXTREMES and isinstance(args[1], Tensor)):
        return False
    dims = _dims(name, args, options, REDUCTIONS[name], len(shape))
    return dims is None or dim in dims


def mixes(name: str, args: Sequence[Any], options: Mapping[str, Any], shape: Shape, dim: int) -> bool:
    """Whether each element of an operation's result depends on all along dimension `dim` of its first argument."""
    if name == "batch_norm":
        is_training = bool(options.get("training", args[5] if len(args) > 5 else False))
        return is_training and dim != 1  # if the samples are the channels, each is normalised by itself
    if name not in MIXING:
        return False
    dims = _dims(name, args, options, MIXING[name], len(shape))
    return dim in ((1,) if dims is None else dims)


def contracts(name: str, shapes: Sequence[Shape], dims: Sequence[int | None]) -> bool:
    """Whether a product of two tensors sums over the dimension of either that counts samples, one of `dims`."""
    if name not in ("matmul", "mm", "mv", "dot", "bmm", "rmatmul") or len(shapes) < 2:
        return False
    first, second = (0, 1) if name != "rmatmul" else (1, 0)
    return dims[first] == len(shapes[first]) - 1 or dims[second] == max(len(shapes[second]) - 2, 0)


def may_reduce(name: str, result: Tensor) -> bool:
    """Whether an operation whose result has no samples may have reduced all of them, as a loss does, not some."""
    if name in ("getitem", "select", "unbind", "iter"):
        return False
    return name in CONTRACTIONS or (result.dim() == 0 and result.is_floating_point())


def place(
    name: str, args: Sequence[Any], options: Mapping[str, Any], before: Shape, dim: int, after: Shape
) -> int | None:
    """Return the dimension of a result that counts the samples, or None if there is none.

    Args:
        name: the name of the operation.
        args: its arguments.
        options: its keyword arguments.
        before: the shape of the argument that has samples.
        dim: the dimension of that argument that counts them.
        after: the shape of the result.
    """
    if name in ("T", "t", "mT", "transpose", "swapaxes", "permute", "movedim"):
        return _transposed(name, args, options, len(before), dim)
    if name in ("stack", "unsqueeze"):
        new: int = options.get("dim", args[1] if len(args) > 1 else 0) % len(after)
        return dim + (new <= dim)
    if name in REDUCTIONS and len(after) < len(before):
        dims = _dims(name, args, options, REDUCTIONS[name], len(before))
        return None if dims is None else dim - sum(each < dim for each in dims)
    if name in ("unbind", "iter", "select"):
        chosen = options.get("dim", args[1] if len(args) > 1 else 0) % len(before)
        return None if chosen == dim else dim - (chosen < dim)
    if name == "getitem" and isinstance(args[0], Tensor) and tuple(args[0].shape) == tuple(before):
        return _indexed(args[1], len(before), dim)
    if name in _RESHAPING:
        return _reshaped(before, dim, after)
    if dim < len(after) and (after[dim] == before[dim] or (name in _KEEPING and len(after) == len(before))):
        return dim
    if name == "masked_select":
        return 0
    return next((other for other, extent in enumerate(after) if extent == before[dim]), None)


def _dims(
    name: str, args: Sequence[Any], options: Mapping[str, Any], position: int, count: int
) -> tuple[int, ...] | None:
    value = options.get("dim", options.get("axis", args[position] if len(args) > position else None))
    if value is None and name in _LAST:
        value = -1
    if value is None or isinstance(value, bool):  # std(unbiased)
        return None
    values = (value,) if isinstance(value, int) else tuple(value)
    if len(args) > position + 1 and isinstance(value, int) and name in ("sum", "mean", "amax", "amin"):
        values += tuple(each for each in args[position + 1 :] if type(each) is int)
    return tuple(each % count for each in values) or None


def _transposed(name: str, args: Sequence[Any], options: Mapping[str, Any], count: int, dim: int) -> int | None:
    order = list(range(count))
    if name in ("T", "t"):
        order.reverse()
    elif name == "mT":
        order[-2:] = order[-1], order[-2]
    elif name == "permute":
        given = options.get("dims", args[1] if len(args) == 2 else args[1:])
        order = [each % count for each in given]
    elif name == "movedim":
        source, to = args[1] % count, args[2] % count
        order.insert(to, order.pop(source))
    else:
        first = options.get("dim0", args[1] if len(args) > 1 else 0) % count
        second = options.get("dim1", args[2] if len(args) > 2 else 1) % count
        order[first], order[second] = second, first
    return order.index(dim)


def _reshaped(before: Shape, dim: int, after: Shape) -> int | None:
    """Return the dimension of `after` that holds dimension `dim` of `before`, where the elements keep their order."""
    outer, found = prod(before[:dim]), 1
    for other, extent in enumerate(after):
        if found <= outer < found * extent or (found == outer and extent == before[dim]):
            return other
        found *= extent
    return None


def _indexed(index: Any, count: int, dim: int) -> int | None:
    items = list(index) if isinstance(index, tuple) else [index]
    taken = sum(_consumed(each) for each in items)
    if any(each is Ellipsis for each in items):
        at = next(which for which, each in enumerate(items) if each is Ellipsis)
        items[at : at + 1] = [slice(None)] * (count - taken)
    here = there = 0
    for each in items:
        consumed = _consumed(each)
        is_number = isinstance(each, int) or (isinstance(each, Tensor) and each.dim() == 0 and consumed == 1)
        if here <= dim < here + consumed:
            return None if is_number else there
        here += consumed
        there += 0 if is_number else 1
    return there + dim - here


def _consumed(item: Any) -> int:
    """Return the number of dimensions that an item of an index consumes."""
    if item is None or item is Ellipsis:
        return 0
    return item.dim() if isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8) else 1
