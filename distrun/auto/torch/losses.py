"""The losses of a training: the weight of each reduction in them, agreed on once for each kind of loss.

Losses are of one kind if the operations on numbers at their ends are the same. In the first batch of each iteration,
and in the next ones where a new kind appears, the parts are not equal and the ranks compare their graphs (`agreement`).
In all other batches a rank knows the factors without communication, unless divisors are counted, such as tokens, or may
be counted. Then the ranks exchange their divisors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from torch import Tensor

import distrun
from distrun.auto import job
from distrun.auto.refusing import refuse
from distrun.auto.torch import agreement, graph
from distrun.auto.torch.agreement import CombiningRule
from distrun.auto.torch.parts import Part
from distrun.auto.torch.session import current as session

_LINES = (
    "loss = criterion(model(x), y)  # a mean or a sum over the samples, or such terms added up",
    "loss.backward()",
)
_COUNTED_LINES = ("criterion = torch.nn.CrossEntropyLoss(ignore_index=-1)  # said from the first batch on",)
_COUNTING_LINES = (
    "loss = (mask * losses).mean() / mask.mean().clamp(min=1e-8)  # a mean over what counts, also where nothing does",
)
_TOGETHER_LINES = ("first, second = iter(one_loader), iter(other_loader)  # both before the first step of the epoch",)
_PART = "distrun.auto.part"
ONCE = CombiningRule.ONCE

_by_place: dict[tuple[graph.Signature, int], tuple[CombiningRule, ...]] = {}  # for the n-th backward() of a batch
_tried: set[tuple[graph.Signature, int | None]] = set()
"""The kinds that were left to a trial, because their graphs do not show that they are right."""
_equal: dict[tuple[graph.Signature, int, int], tuple[float, int]] = {}
"""The last counted divisor that was the same on all ranks, and the number of batches in succession that had it."""
_CHANCES = 8
_by_kind: dict[graph.Signature, tuple[int, set[tuple[CombiningRule, ...]]]] = {}  # the iteration, and the rules in it


@dataclass
class Weighted:
    """A loss of this rank's part, with the weight of each of its reductions."""

    decomposition: graph.Decomposition
    rules: tuple[CombiningRule, ...]
    """The rule of each reduction."""
    of_ranks: tuple[tuple[float, ...], ...]
    """For each reduction, every rank's weight in the average over the ranks."""
    rank: int

    @property
    def factors(self) -> tuple[float, ...]:
        """This rank's weight of each reduction."""
        return tuple(each[self.rank] for each in self.of_ranks)

    @property
    def factor(self) -> float | None:
        """The weight of the loss as a whole. None, on all ranks, if its terms have different weights."""
        return self.factor_of(range(len(self.rules)))

    def factor_of(self, reductions: Sequence[int]) -> float | None:
        """Return the common weight of some reductions. None, on all ranks, if they have different ones."""
        rules = [self.rules[which] for which in reductions]
        weights = {
            tuple(round(each, 9) for each in self.of_ranks[which])
            for which in reductions
            if self.rules[which] is not ONCE
        }
        # The ranks' factors of a mean have the average 1, so terms that count once may be multiplied by them as well.
        if len(weights) > 1 or (ONCE in rules and CombiningRule.SUM in rules):
            return None
        return next(iter(weights))[self.rank] if weights else 1.0

    def products(self) -> Iterator[tuple[graph.Node, int, float | None]]:
        """Yield the products of a number that depends on the batch and one that does not, such as a learned weight.

        The gradient of the latter is the value of the former, so it must get the former's weight. Each product is
        yielded as its node, the position of the latter among the node's inputs, and the weight, which is None if the
        terms of the former have different weights.
        """
        index = {each.node: which for which, each in enumerate(self.decomposition.reductions)}
        for node in self.decomposition.products:
            for place, (factor, _) in enumerate(node.next_functions):
                taken = graph.decompose(factor)
                which = [index[each.node] for each in taken.reductions]
                rules = {self.rules[each] for each in which} - {ONCE}
                if rules:
                    is_mixed = CombiningRule.SUM in rules and taken.has_constants
                    yield node, 1 - place, None if is_mixed else self.factor_of(which)


def part_of(loss: Tensor) -> Part | None:
    """Return the part that a loss was computed from, or None if it is not known.

    `backward()` has noted it in the graph. Otherwise it is the part of the current batch, unless the model is in
    evaluation mode.
    """
    node: graph.Node = loss.grad_fn
    if node is not None and _PART in node.metadata:
        part: Part = node.metadata[_PART]
        return part
    return None if session.part is None or session.is_evaluating else session.part


def weighted(
    loss: Tensor,
    part: Part,
    place: int | None = None,
    divisors_of_batch: Callable[[graph.Signature], Sequence[float] | None] = lambda _: None,
) -> Weighted | None:
    """Return a loss with the factors of its reductions, or None if they are not known.

    They cannot be found out for a kind that is new in a batch whose parts are equal. All ranks call this, each with its
    loss.

    Args:
        loss: a tensor of one element that has a graph.
        part: the part that it was computed from.
        place: the number of the call of `backward()` in this batch, or None if the loss is only read.
        divisors_of_batch: returns, given a loss's signature, the divisors of the reductions in the loss of the whole
            batch, where the step is tried.
    """
    taken = graph.decompose(loss.grad_fn)
    if place is not None:
        for node in taken.numbers:
            node.metadata[_PART] = part
    if part.is_whole:
        count = len(taken.reductions)
        return Weighted(taken, (ONCE,) * count, ((1.0,) * len(part.sizes),) * count, part.rank)
    rules = _rules(loss, taken, part, place, divisors_of_batch(taken.signature))
    if rules is None:
        return None
    factors = [tuple(rule.factor(part.sizes, rank) for rank in range(len(part.sizes))) for rule in rules]
    for which, of_ranks in _counted(taken, rules, part, place).items():
        factors[which] = of_ranks
    if place is not None:
        _check(taken, rules, part)
    return Weighted(taken, rules, tuple(factors), part.rank)


def _rules(
    loss: Tensor, taken: graph.Decomposition, part: Part, place: int | None, whole: Sequence[float] | None
) -> tuple[CombiningRule, ...] | None:
    kind = taken.signature
    is_compared = session.is_first_batch or (job.current.is_tried and part.is_uneven)
    if place is not None and not is_compared and (kind, place) in _by_place:
        return _by_place[kind, place]
    if part.is_uneven and (place is not None or not _kinds(kind)):
        rules = _agree(loss, taken, part, place, whole)
        if place is not None and rules is not None:
            _by_place[kind, place] = rules
        return rules
    known = _kinds(kind)
    return next(iter(known)) if len(known) == 1 else None


def _kinds(kind: graph.Signature) -> set[tuple[CombiningRule, ...]]:
    """Return the rules of losses of a kind, from the latest iteration that agreed on any."""
    return _by_kind.get(kind, (0, set()))[1]


def _agree(
    loss: Tensor, taken: graph.Decomposition, part: Part, place: int | None, whole: Sequence[float] | None
) -> tuple[CombiningRule, ...] | None:
    """Return the rules of a loss by comparing its graphs on all ranks.

    Refuse the script if there are none. For a loss that is only read, return None instead.
    """
    known = None if place is None else _by_place.get((taken.signature, place))
    ranks = distrun.allgather_object(_facts(loss, taken), name="auto.loss")
    key = taken.signature, place
    try:
        try:
            rules = agreement.rules(ranks, part.sizes, session.is_padded, whole)
        except agreement.RefusedError as reason:
            may_differ = whole is not None or key in _tried
            may_select = may_differ or CombiningRule.COUNTED in (known or ())
            rules = agreement.rules(ranks, part.sizes, session.is_padded, whole, may_differ, may_select)
            session.must_be_tried = str(reason)
            if whole is not None:
                _tried.add(key)
        if known is not None:
            rules = agreement.lasting(known, rules, is_tried=whole is not None)
        elif place is not None and whole is None:
            session.has_new_loss = True
    except agreement.RefusedError as reason:
        if place is None:
            return None
        why = f"the loss of the batch is not made up of those of its parts: {reason}"
        refuse(why, reason.lines or _LINES)
    if any(other.has_even_parts for other in ranks) and ONCE in rules:
        # Some terms may depend on a batch of another loader whose parts are equal, which shapes do not show.
        if known is None:
            refuse(
                "a loss appears for the first time while the script works on batches of two DataLoaders, one of them "
                "in the middle of its epoch, where the parts of the ranks are equal: what the loss is to that one's "
                "batch cannot be found out",
                _TOGETHER_LINES,
            )
        return known
    for number, of_term in zip(
        taken.numbers, agreement.rules_of_terms(ranks, part.sizes, session.is_padded, rules), strict=True
    ):  # its terms may be read one by one
        kind = graph.decompose(number).signature
        iteration, kinds = _by_kind.get(kind, (0, set()))
        if iteration != session.iteration:
            _by_kind[kind] = session.iteration, (kinds := set())
        kinds.add(of_term)
    return rules


def _facts(loss: Tensor, taken: graph.Decomposition) -> agreement.LossFacts:
    nodes, described = graph.walk(loss.grad_fn)
    places = {node: place for place, node in enumerate(nodes)}
    index = {each.node: which for which, each in enumerate(taken.reductions)}
    return agreement.LossFacts(
        taken.signature,
        described,
        tuple(each.divisor for each in taken.reductions),
        tuple(each.is_linear for each in taken.reductions),
        tuple(each.is_counted for each in taken.reductions),
        tuple(places[each.node] for each in taken.reductions),
        tuple(place for place, node in enumerate(nodes) if graph.uses_batch_statistics(node)),
        graph.across(nodes),
        tuple(place for place, node in enumerate(nodes) if graph.is_opaque(node)),
        tuple(
            tuple((index[each.node], each.divisor) for each in graph.decompose(number).reductions)
            for number in taken.numbers
        ),
        session.other_parts() != [],
        any(not (other.is_uneven or other.is_whole) for other in session.other_parts()),
    )


def _counted(
    taken: graph.Decomposition, rules: tuple[CombiningRule, ...], part: Part, place: int | None
) -> dict[int, tuple[float, ...]]:
    """Return all ranks' factors of the reductions whose divisors are counted or given by the script, by index.

    The ranks exchange the divisors of this batch.
    """
    which = [
        each
        for each, (reduction, rule) in enumerate(zip(taken.reductions, rules, strict=True))
        if rule is CombiningRule.COUNTED or (reduction.is_scaled and rule is not ONCE)
    ]
    if not which:
        return {}
    mine = np.array([taken.reductions[each].divisor for each in which])
    divisors = distrun.allgather(mine, name="auto.divisors").reshape(distrun.size(), len(which))
    factors = {}
    for each, of_ranks in zip(which, divisors.T, strict=True):
        if rules[each] is not CombiningRule.SUM:
            factors[each] = tuple((distrun.size() * of_ranks / (of_ranks.sum() or 1.0)).tolist())
            if place is not None and part.is_uneven and taken.reductions[each].is_scaled:
                _check_counted((taken.signature, place, each), of_ranks.tolist())
        elif np.isfinite(of_ranks).all() and not agreement.are_equal(of_ranks):
            values = ", ".join(f"{each:g}" for each in of_ranks)
            refuse(
                "a sum over the samples was divided by the same number on all ranks in earlier batches, as if it were "
                f"constant, and is now by {values}: it is counted among the samples, so these steps were wrong",
                _COUNTING_LINES,
            )
    return factors


def _check_counted(reduction: tuple[graph.Signature, int, int], divisors: Sequence[float]) -> None:
    """Refuse a divisor that was counted before and has become a constant."""
    if not agreement.are_equal(divisors):
        _equal.pop(reduction, None)
        return
    last, times = _equal.get(reduction, (divisors[0], 0))
    times = times + 1 if agreement.are_equal([last, divisors[0]]) else 1
    _equal[reduction] = divisors[0], times
    if times == _CHANCES:
        refuse(
            f"a sum over the samples is divided by {divisors[0]:g} on all ranks, {_CHANCES} times in succession, and "
            "was divided by what each rank had counted before: what it is to the batch is not known",
            _COUNTING_LINES,
        )


def _check(taken: graph.Decomposition, rules: tuple[CombiningRule, ...], part: Part) -> None:
    """Refuse a loss in which a mean over the samples is now a mean over something else."""
    for reduction, rule in zip(taken.reductions, rules, strict=True):
        if reduction.is_scaled:  # `_counted` has compared the divisors
            continue
        if rule is CombiningRule.MEAN and (reduction.is_counted or prod(reduction.shape) % part.size):
            refuse(
                f"a mean over a tensor of shape {reduction.shape} is not over the {part.size} samples of this rank's "
                "part, as it was in an earlier batch, so the ranks' gradients cannot be weighted",
                _COUNTED_LINES,
            )
