"""How the losses of the parts combine to the loss of the whole batch, found by comparing the ranks' graphs. Pure.

The first batches are cut so that not all parts are equal. Then the shapes in the graph show which tensors depend on the
part: tensors whose shape is not the same on all ranks, and everything computed from them. Hence:

- A reduction of something that does not depend on the part (weight decay, noise of a fixed size) counts once: factor 1.
- A reduction whose divisor is the same on all ranks, although their numbers of samples differ, is a sum: the ranks'
  values are added.
- A reduction whose divisor is proportional to the ranks' samples is a mean over them.
- A reduction with another divisor is a mean over things within the samples (tokens, masked pixels), and each rank knows
  only the number in its own part. So the ranks exchange divisors in every step. They also do so where the script has
  multiplied or divided by a number: a single batch does not show whether it is constant or counted, unless the step is
  tried, where the divisor of the whole batch is known.

Gradients are averaged over the ranks after that, so the factor of a sum is the number of ranks.

A loss in which samples are combined before the last reduction cannot be computed from the parts: it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

Described = Sequence[tuple[str, tuple[tuple[int, ...], ...], tuple[int, ...]]]
"""The nodes of a graph, as `graph.walk` describes them."""
_SELECTIONS = ("IndexBackward0", "MaskedSelectBackward0", "SliceBackward0", "SplitBackward0", "SplitWithSizesBackward0")


class CombiningRule(Enum):
    """The way in which the ranks' values of a reduction combine to its value for the whole batch."""

    ONCE = "once"
    SUM = "sum"
    MEAN = "mean"
    COUNTED = "counted"

    def factor(self, sizes: Sequence[int], rank: int) -> float:
        """Return the weight of a rank's value in the average over the ranks. `COUNTED` needs divisors instead."""
        if self is CombiningRule.SUM:
            return float(len(sizes))
        return len(sizes) * sizes[rank] / sum(sizes) if self is CombiningRule.MEAN else 1.0


@dataclass(frozen=True)
class LossFacts:
    """The facts that a rank knows about a loss."""

    signature: tuple[str, ...]
    graph: Described
    divisors: tuple[float, ...]
    """The divisor of each reduction."""
    linear: tuple[bool, ...]
    """Whether the loss is linear in each reduction, which is a sum or a mean."""
    counted: tuple[bool, ...]
    """Whether the divisor of each reduction is the number, or the total weight, of the samples that count."""
    places: tuple[int, ...]
    """The index of each reduction in the graph."""
    batch_statistics: tuple[int, ...] = ()
    """The indices of nodes that normalise by the statistics of the part alone."""
    across: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """The indices of nodes that order or compare elements along dimensions, with the extents of these."""
    opaque: tuple[int, ...] = ()
    """The indices of functions that were given tensors which the graph does not show."""
    terms: tuple[tuple[tuple[int, float], ...], ...] = ()
    """For each number in the loss, the indices of the reductions in it, with their divisors there."""
    has_other_parts: bool = False
    """Whether the script also works on batches of another loader."""
    has_even_parts: bool = False
    """Whether the parts of any of those batches are equal, so that shapes do not show what depends on them."""


class RefusedError(Exception):
    """The loss of the batch cannot be computed from the losses of the parts, for the reason given."""

    def __init__(self, why: str, *lines: str) -> None:
        super().__init__(why)
        self.lines = lines
        """Lines for the script to use instead, if the usual advice does not fit."""


def rules(
    ranks: Sequence[LossFacts],
    sizes: Sequence[int],
    is_padded: bool = False,
    whole: Sequence[float] | None = None,
    may_differ: bool = False,
    may_select: bool = False,
) -> tuple[CombiningRule, ...]:
    """Return the rule of each reduction of a loss.

    Args:
        ranks: the facts of all ranks.
        sizes: the number of samples of each rank, not all equal.
        is_padded: whether samples may have been padded to the longest one of their part, so that a divisor that is
            proportional to the number of samples now may not be in the next batch.
        whole: the divisor of each reduction in the loss of the whole batch, if the step is tried.
        may_differ: whether the ranks' graphs may differ, as with texts of other lengths. Then a trial shows whether the
            loss is right.
        may_select: whether selections of samples may have the same extent on all ranks by chance.

    Raises:
        RefusedError: the losses of the parts do not combine to the loss of the batch.
    """
    first = ranks[0]
    if any(other.signature != first.signature for other in ranks):
        raise RefusedError("the ranks compute their losses in different ways, as if the data or chance had decided how")
    if any([name for name, *_ in other.graph] != [name for name, *_ in first.graph] for other in ranks):
        if not may_differ:
            raise RefusedError(
                "the ranks' graphs of the loss differ, as if the data or chance had decided what is computed"
            )
        return _rules_of_different(ranks, sizes, is_padded, whole)
    depends = _depending(ranks, sizes, is_padded, may_select)
    _check_order(ranks, sizes, is_padded or any(other.has_other_parts for other in ranks))
    if not all(_is_of_each_sample(ranks, place) for place in first.batch_statistics):
        raise RefusedError("it normalises by the statistics of the batch by a function, where only layers are known")
    found = []
    for reduction, place in enumerate(first.places):
        if not depends[place] and (whole is None or are_equal([first.divisors[reduction], whole[reduction]])):
            _check_opaque(first, place)
            found.append(CombiningRule.ONCE)
        elif not first.linear[reduction]:
            raise RefusedError(
                "what is computed from the samples is no sum or mean, nor a combination of such "
                f"({first.graph[place][0]}, or what follows it)"
            )
        else:
            found.append(_rule_of(ranks, sizes, is_padded, reduction, whole))
    if _multiplies(first, depends):
        raise RefusedError("it multiplies numbers that both depend on the batch")
    return tuple(found)


def _rules_of_different(
    ranks: Sequence[LossFacts], sizes: Sequence[int], is_padded: bool, whole: Sequence[float] | None
) -> tuple[CombiningRule, ...]:
    """Return the rules where the ranks' graphs differ, such as by the number of steps over texts of different lengths.

    Such graphs cannot be compared node by node, but the trial compares the gradients.
    """
    found = []
    for reduction, is_linear in enumerate(ranks[0].linear):
        # The operations that it is computed with, and the shapes of their results.
        below = [[other.graph[each][:2] for each in _below(other, other.places[reduction])] for other in ranks]
        if all(each == below[0] for each in below):
            found.append(CombiningRule.ONCE)
        elif is_linear:
            found.append(_rule_of(ranks, sizes, is_padded, reduction, whole))
        else:
            raise RefusedError("what is computed from the samples is no sum or mean, nor a combination of such")
    return tuple(found)


def _below(facts: LossFacts, place: int) -> list[int]:
    """Return the nodes that the node at `place` is computed with, and itself, in order."""
    places = {place}
    for each in range(place, -1, -1):  # each node comes after its inputs
        if each in places:
            places.update(facts.graph[each][2])
    return sorted(places)


def lasting(known: Sequence[CombiningRule], new: Sequence[CombiningRule], is_tried: bool) -> tuple[CombiningRule, ...]:
    """Combine the rules of a loss in this batch with the rules in earlier ones.

    A number that depends on the samples, such as how many of them count, may be equal on all ranks by chance.

    Args:
        known: the rules from earlier batches.
        new: the rules by this batch.
        is_tried: whether a trial shows whether the result is right.

    Raises:
        RefusedError: a term depends on the samples in one batch, and in another does not seem to.
    """
    found = []
    for old, rule in zip(known, new, strict=True):
        if {old, rule} == {CombiningRule.ONCE, CombiningRule.SUM} and not (old is CombiningRule.SUM and is_tried):
            raise RefusedError("a term of it is a sum over the samples, and in another batch does not seem so")
        if old is CombiningRule.ONCE and rule is CombiningRule.COUNTED:
            raise RefusedError("a term of it is a mean over some samples, and in an earlier batch did not seem so")
        found.append(
            old if rule is CombiningRule.ONCE or (old is CombiningRule.COUNTED and rule is CombiningRule.SUM) else rule
        )
    return tuple(found)


def rules_of_terms(
    ranks: Sequence[LossFacts], sizes: Sequence[int], is_padded: bool, of_loss: Sequence[CombiningRule]
) -> list[tuple[CombiningRule, ...]]:
    """Return, for each number in a loss, the rules of its reductions as if that number were the loss.

    Args:
        ranks, sizes, is_padded: as for `rules`.
        of_loss: the rules of the loss itself.
    """
    found = []
    for terms in zip(*(other.terms for other in ranks), strict=True):
        of_term = []
        for pairs in zip(*terms, strict=True):
            which = pairs[0][0]
            is_counted = any(other.counted[which] for other in ranks)
            divisors = [divisor for _, divisor in pairs]
            is_known = of_loss[which] is CombiningRule.ONCE or divisors == [other.divisors[which] for other in ranks]
            of_term.append(of_loss[which] if is_known else _rule(ranks, sizes, is_padded, divisors, is_counted))
        found.append(tuple(of_term))
    return found


def _rule_of(
    ranks: Sequence[LossFacts], sizes: Sequence[int], is_padded: bool, reduction: int, whole: Sequence[float] | None
) -> CombiningRule:
    """Return the rule of a reduction whose input depends on the batch."""
    divisors = [other.divisors[reduction] for other in ranks]
    is_counted = any(other.counted[reduction] for other in ranks)
    if whole is not None and are_equal(divisors):  # by chance, if they add up to the batch's
        is_counted |= are_equal([sum(divisors), whole[reduction]])
    return _rule(ranks, sizes, is_padded, divisors, is_counted)


def _rule(
    ranks: Sequence[LossFacts], sizes: Sequence[int], is_padded: bool, divisors: Sequence[float], is_counted: bool
) -> CombiningRule:
    """Return the rule of a sum or mean over something that depends on the batch, given the ranks' divisors."""
    if is_counted:
        return CombiningRule.COUNTED
    if are_equal(divisors):
        return CombiningRule.SUM
    follows = _are_close(divisors, [divisors[0] / sizes[0] * size for size in sizes])
    is_of_samples = not is_padded and not any(other.has_other_parts for other in ranks)
    return CombiningRule.MEAN if follows and is_of_samples else CombiningRule.COUNTED


def are_equal(divisors: Sequence[float]) -> bool:
    """Whether all divisors are the same, but for rounding to float32."""
    return _are_close(divisors, [divisors[0]] * len(divisors))


def _are_close(numbers: Sequence[float], others: Sequence[float]) -> bool:
    return all(abs(one - other) <= 2e-7 * abs(other) for one, other in zip(numbers, others, strict=True))


def _depending(ranks: Sequence[LossFacts], sizes: Sequence[int], is_padded: bool, may_select: bool) -> list[bool]:
    """Return, for each node, whether it depends on the rank's part. Refuse nodes that are computed across samples."""
    depends: list[bool] = []
    selected: list[int | None] = []  # by node: the first extent, if it is computed from a selection of samples
    for nodes in zip(*(other.graph for other in ranks), strict=True):
        name, shapes, inputs = nodes[0]
        varies = [_varying(each, sizes) for each in zip(*(node[1] for node in nodes), strict=True)]
        inherits = any(depends[place] for place in inputs)
        of_tensors = any(depends[place] and not _is_number(ranks[0].graph[place][1]) for place in inputs)
        if any(count > 1 for count in varies) and not is_padded:
            raise RefusedError(f"samples are compared with each other ({name}), and each rank has only its own")
        is_tensor = any(len(shape) > 0 for shape in shapes)
        first = shapes[0][0] if shapes and shapes[0] else None
        is_selected = may_select and (
            name in _SELECTIONS or (first is not None and first in [selected[place] for place in inputs])
        )
        selected.append(first if is_selected else None)
        if of_tensors and is_tensor and not any(varies) and not _is_number(shapes) and not is_selected:
            raise RefusedError(
                f"the samples of the batch are combined before the loss ({name} of shape {list(shapes[0])}), and each "
                "rank has only its own"
            )
        depends.append(inherits or any(varies))
    return depends


def _check_order(ranks: Sequence[LossFacts], sizes: Sequence[int], may_vary: bool) -> None:
    """Refuse nodes that order the samples, or compare them with each other.

    If `may_vary`, extents that do not count samples may depend on the part as well.
    """
    for found in zip(*(other.across for other in ranks), strict=True):
        place = found[0][0]
        for extents in zip(*(each for _, each in found), strict=True):
            follows = all(extent * sizes[0] == extents[0] * size for extent, size in zip(extents, sizes, strict=True))
            if len(set(extents)) > 1 and (follows or not may_vary):
                raise RefusedError(
                    f"the samples of the batch are ordered, or compared with each other ({ranks[0].graph[place][0]}), "
                    "and each rank has only its own"
                )


def _check_opaque(facts: LossFacts, reduction: int) -> None:
    """Refuse a reduction that seems independent of the batch, if a function below it may hide that it depends on it."""
    hiding = set(facts.opaque).intersection(_below(facts, reduction))
    if hiding:
        raise RefusedError(
            f"a number is computed from the batch within one function ({facts.graph[max(hiding)][0]}), so that nothing "
            "shows whether it is a mean over the samples or a sum",
            "output = model(x)  # compiled, or a function of one's own",
            "loss = criterion(output, y)  # outside of it",
        )


def _is_number(shapes: Sequence[tuple[int, ...]]) -> bool:
    return all(shape in ((), (1,)) for shape in shapes)


def _varying(shapes: Sequence[tuple[int, ...]], sizes: Sequence[int]) -> int:
    """Return how many extents of a tensor differ between ranks, given its shapes on them, 1 if it is their number."""
    if len({len(shape) for shape in shapes}) > 1:
        return 1
    return sum(len(set(extents)) > 1 for extents in zip(*shapes, strict=True))


def _is_of_each_sample(ranks: Sequence[LossFacts], place: int) -> bool:
    """Whether a batch normalisation is an instance normalisation: torch turns the samples into channels of one."""
    shapes = [other.graph[place][1][0] for other in ranks]
    return all(len(shape) > 2 and shape[0] == 1 for shape in shapes) and len({shape[1] for shape in shapes}) > 1


def _multiplies(facts: LossFacts, depends: Sequence[bool]) -> bool:
    """Whether any number is a product of two numbers that both depend on the batch."""
    return any(
        name == "MulBackward0"
        and _is_number(shapes)
        and len(inputs) == 2
        and all(_is_number(facts.graph[place][1]) and depends[place] for place in inputs)
        for name, shapes, inputs in facts.graph
    )
