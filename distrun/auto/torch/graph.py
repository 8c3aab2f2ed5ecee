"""A loss, taken apart into the reductions over the batch that it is a linear combination of.

The loss of a whole batch is not always the mean of the losses of its parts. A mean over 3 samples and one over 5 must
be weighted, sums must be added, and a function of a mean cannot be computed from the parts at all. The graph of a loss
shows which case it is: walk from its end back over numbers to the first tensors, which are the inputs of the
reductions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, prod
from typing import Any, NamedTuple

import torch
from torch.autograd.function import BackwardCFunction

Node = Any
Shape = tuple[int, ...]
Signature = tuple[str, ...]
"""The operations on numbers at the end of a loss."""

_SAME = {"CloneBackward0", "ToCopyBackward0", "AliasBackward0", "ViewBackward0", "ReshapeAliasBackward0"}
_SAME |= {"SqueezeBackward0", "SqueezeBackward1", "SqueezeBackward2", "UnsqueezeBackward0", "UnsafeViewBackward0"}
_SAME |= {"AddBackward1", "SubBackward1"}  # a constant is added, which is not in the graph
_MEANS = {"MeanBackward0", "MeanBackward1"}
_NONE_IGNORED = (-100, (1 << 64) - 100)  # torch gives the number as it is, or as unsigned 64 bits
_SELECTIONS = {"IndexBackward0", "MaskedSelectBackward0"}
_SUMS = {"SumBackward0", "SumBackward1", "DotBackward0"}
_PRODUCTS = {"MulBackward0", "DivBackward0"}
_ADDITIONS = ("AddBackward", "SubBackward", "RsubBackward")
_KEPT = "distrun.auto.kept"
_ACROSS = {"Topk", "Sort", "Median", "Nanmedian", "Kthvalue", "Mode", "Softmax", "LogSoftmax", "Max", "Min", "Amax"}
_ACROSS |= {"Amin", "Cumsum", "Cumprod", "Cummax", "Cummin", "Logcumsumexp", "Logsumexp", "Prod", "Std", "Var", "Roll"}


@dataclass
class TracedReduction:
    """A number that an operation has computed from a tensor."""

    node: Node
    divisor: float
    """The number that a sum over the batch's samples was divided by, including all later factors except 0."""
    is_linear: bool
    """Whether it is a sum or a mean, and the loss is a multiple of it plus other terms."""
    shape: Shape
    """The shape of the tensor."""
    is_counted: bool = False
    """Whether samples may count differently: the divisor is the number, or the total weight, of those that count."""
    is_scaled: bool = False
    """Whether the divisor has a factor from the script, which may be counted or constant."""


class _Open(NamedTuple):
    """A node on the path from the loss to its reductions, with the loss's derivative with respect to its output."""

    node: Node
    factor: float = 1.0
    is_linear: bool = True
    is_scaled: bool = False

    def to(self, node: Node) -> _Open:
        return self._replace(node=node)

    def times(self, node: Node, factor: float) -> _Open:
        return _Open(node, self.factor * (factor or 1.0), self.is_linear, is_scaled=True)


@dataclass
class Decomposition:
    """A loss as a combination of reductions."""

    reductions: list[TracedReduction] = field(default_factory=list)
    numbers: list[Node] = field(default_factory=list)
    """The nodes whose outputs are numbers, in order, beginning with the loss."""

    @property
    def products(self) -> list[Node]:
        """The nodes that multiply or divide two numbers that both have a gradient."""
        return [each for each in self.numbers if each.name() in _PRODUCTS and None not in dict(each.next_functions)]

    @property
    def has_constants(self) -> bool:
        """Whether a number other than a reduction is added: a constant or a parameter."""
        return any(
            not each.next_functions or (each.name().startswith(_ADDITIONS) and None in dict(each.next_functions))
            for each in self.numbers
        )

    @property
    def signature(self) -> Signature:
        """The names of the operations on numbers, which tell losses of different kinds apart."""
        kinds = [(node.name(), getattr(node, "_saved_reduction", None)) for node in self.numbers]
        return tuple(name if kind is None else f"{name} {kind}" for name, kind in kinds)


def decompose(loss: Node | None) -> Decomposition:
    """Return the reductions that a loss consists of.

    Factors that are numbers or tensors without a gradient, and the loss function's own, go into the divisors.

    Args:
        loss: the node of a tensor of one element, or None if that is a parameter itself.
    """
    found = Decomposition()
    if loss is None:
        return found
    scalars: tuple[Shape, ...] = ((), (1,)) if shape_of(loss) else ((),)
    open_nodes = [_Open(loss)]
    while open_nodes:
        opened = open_nodes.pop()
        node, name = opened.node, opened.node.name()
        found.numbers.append(node)
        inputs = [(each, shape_of(each, place)) for each, place in node.next_functions if each is not None]
        if not inputs:  # a parameter that is a number
            continue
        if name == "StackBackward0" or (name == "CatBackward0" and len(scalars) > 1):
            open_nodes += [opened.to(each) for each, _ in inputs]
            continue
        numbers = [(each, shape) for each, shape in inputs if shape in scalars]
        if len(numbers) == len(inputs):
            open_nodes += _through(opened, name, [each for each, _ in numbers])
            continue
        stacked = _stacked(node, name, inputs, scalars)
        if stacked is not None:
            open_nodes += [opened.to(each)._replace(factor=opened.factor * stacked[1]) for each in stacked[0]]
            continue
        found.reductions.append(_reduction(opened, inputs[0][0].name(), inputs[0][1]))
    return found


def shape_of(node: Node, place: int = 0) -> Shape | None:
    """Return the shape of the output of a node at `place`, or None if there is none."""
    metadata = node._input_metadata
    return tuple(metadata[place].shape) if place < len(metadata) else None


def _through(opened: _Open, name: str, inputs: Sequence[Node]) -> list[_Open]:
    """Return the inputs of a function of numbers, as open nodes, with their factors if it is linear in them."""
    node = opened.node
    if name in _SAME or name in _MEANS or name in _SUMS:
        return [opened.to(each) for each in inputs]
    if name in ("NegBackward0", "RsubBackward1"):
        return [opened.to(each)._replace(factor=-opened.factor) for each in inputs]
    if name in ("AddBackward0", "SubBackward0"):
        sign = 1.0 if name == "AddBackward0" else -1.0
        second = node.next_functions[1][0]
        scale = sign * float(node._saved_alpha)
        return [opened.to(each)._replace(factor=opened.factor * (scale if each is second else 1.0)) for each in inputs]
    first, *second = (each for each, _ in node.next_functions)
    if name in ("MulBackward0", "MulBackward1"):
        if len(inputs) == 2:  # linear if only one of them depends on the batch: see `agreement`
            return [opened.to(each) for each in inputs]
        return [opened.times(inputs[0], _number(node, "_saved_self" if first is None else "_saved_other"))]
    if name in ("DivBackward0", "DivBackward1"):
        if second not in ([], [None]):
            return [opened.to(each)._replace(is_linear=opened.is_linear and each is first) for each in inputs]
        number = _number(node, "_saved_other")
        return [opened.times(inputs[0], 1 / number if number else inf)]
    return [opened.to(each)._replace(is_linear=False) for each in inputs]


def _number(node: Node, name: str) -> float:
    """Return a number that a node has saved. It is cached, because the script may read the loss after `backward()`."""
    marks = node.metadata
    if _KEPT not in marks:
        with torch._C._DisableTorchDispatch():  # a mode would mistake the number for a tensor
            try:
                value = getattr(node, name)
            except RuntimeError:  # the graph has been freed
                return 1.0
            marks[_KEPT] = 1.0 if value is None else float(value)
    return float(marks[_KEPT])


def _stacked(
    node: Node, name: str, inputs: Sequence[tuple[Node, Shape | None]], scalars: Sequence[Shape]
) -> tuple[list[Node], float] | None:
    """Return the numbers that were stacked before they were summed, and the factor of each, None for other inputs."""
    if name not in _MEANS | _SUMS or inputs[0][0].name() != "StackBackward0":
        return None
    stacked = [(each, shape_of(each, place)) for each, place in inputs[0][0].next_functions if each is not None]
    if any(shape not in scalars for _, shape in stacked):
        return None
    return [each for each, _ in stacked], 1 / len(inputs[0][0].next_functions) if name in _MEANS else 1.0


def _reduction(opened: _Open, inputs_name: str, shape: Shape | None) -> TracedReduction:
    node, name, shape = opened.node, opened.node.name(), shape or ()
    divisor: float | None = None
    is_counted = inputs_name in _SELECTIONS
    if name in _MEANS:
        divisor = float(prod(shape))
    elif name in _SUMS:
        divisor = 1.0
    elif name.startswith("NllLoss"):
        divisor, is_counted = _divisor_of_nll(node, shape)
    elif (kind := getattr(node, "_saved_reduction", None)) in (1, 2):
        divisor = float(prod(shape)) if kind == 1 else 1.0
    if divisor is None:
        return TracedReduction(node, 1.0, False, shape)
    return TracedReduction(node, divisor / opened.factor, opened.is_linear, shape, is_counted, opened.is_scaled)


def _divisor_of_nll(node: Node, shape: Shape) -> tuple[float | None, bool]:
    """Return the total weight of the targets that count, and whether it may differ from the number of all targets."""
    if node._saved_reduction != 1:
        return (1.0 if node._saved_reduction == 2 else None), False
    classes = shape[1] if len(shape) > 1 else 1
    count = prod(shape) / classes
    marks = node.metadata
    if _KEPT not in marks:
        try:
            total = node._saved_total_weight
            is_plain = node._saved_weight is None and node._saved_ignore_index in _NONE_IGNORED and len(shape) == 2
        except RuntimeError:  # the graph has been freed
            return count, False
        if total.is_cuda and is_plain:  # reading from a GPU would wait for it
            return count, False
        marks[_KEPT] = float(total), not is_plain or float(total) != count
    kept: tuple[float, bool] = marks[_KEPT]
    return kept


def walk(loss: Node) -> tuple[list[Node], list[tuple[str, tuple[Shape, ...], tuple[int, ...]]]]:
    """Return all nodes of a graph, and for each its name, the shapes of its outputs, and the indices of its inputs.

    Each node comes after its inputs. The order depends only on the graph, so equal graphs have equal orders on all
    ranks.
    """
    order: list[Node] = []
    places: dict[Node, int] = {}
    stack: list[tuple[Node, bool]] = [(loss, False)]
    opened: set[Node] = set()
    while stack:
        node, is_done = stack.pop()
        if is_done:
            places[node] = len(order)
            order.append(node)
        elif node not in opened:
            opened.add(node)
            stack.append((node, True))
            stack += [(each, False) for each, _ in reversed(node.next_functions) if each is not None]
    described = [
        (
            node.name(),
            tuple(tuple(each.shape) for each in node._input_metadata),
            tuple(places[each] for each, _ in node.next_functions if each is not None),
        )
        for node in order
    ]
    return order, described


def uses_batch_statistics(node: Node) -> bool:
    """Whether a node normalises by the statistics of this rank's part."""
    name = node.name()
    return "BatchNorm" in name and bool(getattr(node, "_saved_training", getattr(node, "_saved_train", False)))


def across(nodes: Sequence[Node]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return the indices of nodes that order or compare elements along dimensions, with the extents of these."""
    found = []
    for place, node in enumerate(nodes):
        name = node.name().partition("Backward")[0].lstrip("_")
        dimensions = getattr(node, "_saved_dim", getattr(node, "_saved_dims", None))
        if name.startswith("ScaledDotProduct"):
            dimensions, shape = -2, shape_of(node)
        elif name in _ACROSS and dimensions is not None and node.next_functions:
            shape = shape_of(*node.next_functions[0])
        else:
            continue
        signed = [each - (1 << 64) if each >= 1 << 63 else each for each in _all(dimensions)]
        extents = tuple(shape[each] for each in signed if -len(shape) <= each < len(shape)) if shape else ()
        if extents:
            found.append((place, extents))
    return tuple(found)


def _all(dimensions: int | Sequence[int]) -> Sequence[int]:
    return [dimensions] if isinstance(dimensions, int) else dimensions or [0]  # none: the tensor was flattened


def is_opaque(node: Node) -> bool:
    """Whether a node is a Python or compiled function (`torch.autograd.Function`) with an input without a gradient."""
    return isinstance(node, BackwardCFunction) and any(each is None for each, _ in node.next_functions)
