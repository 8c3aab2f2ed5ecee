"""The signed-rank test: whether the second of two things measured in pairs is smaller, and not by chance.

F. Wilcoxon, "Individual comparisons by ranking methods", Biometrics Bulletin 1 (1945), 80-83. Only the order of the
differences counts, so a step that took ten times as long for an unrelated reason weighs no more than any other.
"""

from __future__ import annotations

from collections.abc import Sequence


def slower_ranks(differences: Sequence[float]) -> int:
    """Return the sum of the ranks of the differences that are not negative. The smallest absolute value has rank 1.

    Among equal absolute values, the differences that are not negative get the higher ranks, so ties never favour the
    second thing.
    """
    ordered = sorted(differences, key=lambda difference: (abs(difference), difference >= 0))
    return sum(rank for rank, difference in enumerate(ordered, start=1) if difference >= 0)


def largest_sum(count: int, chance: float) -> int:
    """Return the largest sum of ranks that `count` differences stay at or below with at most the probability `chance`.

    That holds if each difference is as likely to be positive as negative. Returns -1 if they are too few.
    """
    ways = [1]  # by sum of ranks: the number of sign patterns that give it
    for rank in range(1, count + 1):
        ways = [
            (ways[total] if total < len(ways) else 0) + (ways[total - rank] if total >= rank else 0)
            for total in range(len(ways) + rank)
        ]
    reached, limit = 0, chance * 2**count
    for total, number in enumerate(ways):
        reached += number
        if reached > limit:
            return total - 1
    return len(ways) - 1
