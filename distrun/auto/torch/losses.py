"""The losses of a training: what each reduction in them counts for, agreed on once for each kind of loss.

Losses are of one kind if the operations on numbers at their ends are the same. In the first batch of each iteration,
whose parts are not equal, the ranks compare their graphs (`agreement`). In the others a rank knows the factors by
itself, unless divisors are counted, such as tokens: then the ranks tell one another those.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from torch import Tensor

import distrun
from distrun.auto.refusing import refuse
from distrun.auto.torch import agreement, graph
from distrun.auto.torch.agreement import Rule
from distrun.auto.torch.parts import Part
from distrun.auto.torch.session import current as session

_LINES = (
    "loss = criterion(model(x), y)  # a mean or a sum over the samples, or such terms added up",
    "loss.backward()",
)
_COUNTED_LINES = ("criterion = torch.nn.CrossEntropyLoss(ignore_index=-1)  # said from the first batch on",)
_FACTOR = "distrun.auto.factor"
_PART = "distrun.auto.part"
ONCE = Rule.ONCE

Signature = tuple[str, ...]
_by_place: dict[tuple[Signature, int], tuple[Rule, ...]] = {}  # of the n-th backward() of a batch
_by_kind: dict[Signature, tuple[int, set[tuple[Rule, ...]]]] = {}  # with the number of the iteration


@dataclass
class Weighted:
    """A loss of this rank's part, with what each of its reductions counts for."""

    parts: graph.Parts
    rules: tuple[Rule, ...]
    """The rule of each reduction."""
    factors: tuple[float, ...]
    """The weight of each reduction in the average over the ranks."""

    @property
    def factor(self) -> float | None:
        """The factor by which the loss as a whole counts; None: its terms count in different ways."""
        factors = {round(factor, 9) for factor, rule in zip(self.factors, self.rules, strict=True) if rule is not ONCE}
        # The factors of means have the average 1, so that terms that count once may have them as well.
        is_mixed = ONCE in self.rules and Rule.SUM in self.rules
        return None if len(factors) > 1 or is_mixed else next(iter(factors), 1.0)


def part_of(loss: Tensor) -> Part | None:
    """Return the part that a loss was computed from, as far as it is known: `backward()` has told it, or it is that of
    the batch which the script works on."""
    node: graph.Node = loss.grad_fn
    part: Part | None = session.part if node is None else node.metadata.get(_PART, session.part)
    return part


def weighted(loss: Tensor, part: Part, place: int | None = None) -> Weighted | None:
    """Return a loss with the factors of its reductions; None: its kind is new, and the batch's parts are equal.

    All ranks call it with their losses.

    Args:
        loss: has a graph, and one element.
        part: the part that it was computed from.
        place: the number of the call of `backward()` in this batch; None: the loss is only read.
    """
    taken = graph.parts(loss.grad_fn)
    if place is not None:
        for node in taken.numbers:
            node.metadata[_PART] = part
    if part.is_whole:
        return Weighted(taken, (ONCE,) * len(taken.reductions), (1.0,) * len(taken.reductions))
    rules = _rules(loss, taken, part, place)
    if rules is None:
        return None
    factors = [rule.factor(part.sizes, part.rank) for rule in rules]
    counted = [which for which, rule in enumerate(rules) if rule is Rule.COUNTED]
    told = [taken.reductions[which].node.metadata.get(_FACTOR) for which in counted]
    # After `backward()` the divisors are gone, with what the graph had saved.
    known = told if None not in told else _count(taken, counted)
    for which, factor in zip(counted, known, strict=True):
        factors[which] = factor
        if place is not None:
            taken.reductions[which].node.metadata[_FACTOR] = factor
    if place is not None:
        _check(taken, rules, part)
    return Weighted(taken, rules, tuple(factors))


def _rules(loss: Tensor, taken: graph.Parts, part: Part, place: int | None) -> tuple[Rule, ...] | None:
    kind = taken.signature
    if place is not None and not session.is_first_batch and (kind, place) in _by_place:
        return _by_place[kind, place]
    if part.is_uneven and (place is not None or not _kinds(kind)):
        rules = _agree(loss, taken, part)
        if place is not None:
            _by_place[kind, place] = rules
        return rules
    known = _kinds(kind)
    return next(iter(known)) if len(known) == 1 else None


def _kinds(kind: Signature) -> set[tuple[Rule, ...]]:
    """Return the rules that losses of a kind have, in the iteration where any was agreed on last."""
    return _by_kind.get(kind, (0, set()))[1]


def _agree(loss: Tensor, taken: graph.Parts, part: Part) -> tuple[Rule, ...]:
    nodes, described = graph.walk(loss.grad_fn)
    places = {node: place for place, node in enumerate(nodes)}
    mine = agreement.Facts(
        taken.signature,
        described,
        tuple(each.divisor for each in taken.reductions),
        tuple(each.is_linear for each in taken.reductions),
        tuple(each.is_counted for each in taken.reductions),
        tuple(places[each.node] for each in taken.reductions),
        tuple(place for place, node in enumerate(nodes) if graph.uses_batch_statistics(node)),
    )
    ranks = distrun.allgather_object(mine, name="auto.loss")
    try:
        rules = agreement.rules(ranks, part.sizes, session.is_padded)
    except agreement.RefusedError as reason:
        refuse(f"the loss of the batch is not made up of those of its parts: {reason}", _LINES)
    by_node = {each.node: rule for each, rule in zip(taken.reductions, rules, strict=True)}
    for number in taken.numbers:  # its terms may be read one by one
        term = graph.parts(number)
        iteration, known = _by_kind.get(term.signature, (0, set()))
        if iteration != session.iteration:
            _by_kind[term.signature] = session.iteration, (known := set())
        known.add(tuple(by_node[each.node] for each in term.reductions))
    return rules


def _count(taken: graph.Parts, counted: list[int]) -> list[float]:
    """Return the factors of reductions whose divisors each rank counts for itself."""
    if not counted:
        return []
    mine = np.array([taken.reductions[place].divisor for place in counted])
    total = distrun.allreduce(mine, op=distrun.Sum, name="auto.divisors")
    return [float(each) for each in distrun.size() * mine / np.where(total == 0, 1, total)]


def _check(taken: graph.Parts, rules: tuple[Rule, ...], part: Part) -> None:
    """Refuse a mean over the samples that is over something else now."""
    for reduction, rule in zip(taken.reductions, rules, strict=True):
        if rule is Rule.MEAN and (reduction.is_counted or prod(reduction.shape) % part.size):
            refuse(
                f"a mean over a tensor of shape {reduction.shape} is not over the {part.size} samples of this rank's "
                "part, as it was in the first batch, so the ranks' gradients cannot be weighted",
                _COUNTED_LINES,
            )
