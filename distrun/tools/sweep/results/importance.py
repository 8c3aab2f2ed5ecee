"""The importance of parameters: how much of the variance of the trials' ranks each one explains by itself.

The trials are ranked by value, so that a few that diverged do not hide the rest. For each parameter they are divided
into groups, by choice or into quarters of a range, and the correlation ratio is the variance between them over the
whole variance, less what groups of that size would explain by chance (Kelley's epsilon squared). It knows nothing of
parameters that matter together only, as fANOVA does, and needs no library.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from distrun.tools.sweep.search.source import Result
from distrun.tools.sweep.space.ranges import Choices, Range, as_number

_FEWEST = 5  # trials of which something can be said
_PARTS = 4


def importances(results: Sequence[Result], parameters: dict[str, Range]) -> dict[str, float]:
    """Return the share of the variance that each parameter explains, from 0 to 1, the most important first.

    Args:
        results: trials; those without a finite value are left out.
        parameters: the parameters.

    Returns:
        The shares; nothing if there are too few trials.
    """
    finite = [result for result in results if result.is_finite]
    if len(finite) < _FEWEST:
        return {}
    ranks = _ranks([result.value or 0.0 for result in finite])
    found = {}
    for name, values in parameters.items():
        texts = [result.values[name] for result in finite]
        if isinstance(values, Choices):
            groups = [str(text) for text in texts]
        else:
            places = _ranks([as_number(text) or 0.0 for text in texts])
            groups = [str(int(_PARTS * place / len(places))) for place in places]
        found[name] = _explained(ranks, groups)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, from 0; equal values share the mean of theirs."""
    ranks, below = {}, 0
    for value, count in sorted(Counter(values).items()):
        ranks[value] = below + (count - 1) / 2
        below += count
    return [ranks[value] for value in values]


def _explained(ranks: Sequence[float], groups: Sequence[str]) -> float:
    """Return the variance between the groups over the whole, less what chance would give."""
    mean = statistics.fmean(ranks)
    whole = sum((rank - mean) ** 2 for rank in ranks)
    names = set(groups)
    if not whole or len(names) < 2 or len(names) >= len(ranks):
        return 0.0
    between = 0.0
    for name in names:
        own = [rank for rank, group in zip(ranks, groups, strict=True) if group == name]
        between += len(own) * (statistics.fmean(own) - mean) ** 2
    within = (whole - between) / (len(ranks) - len(names))
    return max(0.0, (between - (len(names) - 1) * within) / whole)
