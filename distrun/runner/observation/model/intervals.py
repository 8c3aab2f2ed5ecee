"""Arithmetic of intervals: lists of pairs (begin, end), in any unit of time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[int, int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union of intervals, as sorted intervals that do not touch each other."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = merged[-1][0], end
        elif end > begin:
            merged.append((begin, end))
    return merged


def common(one: Sequence[Interval], other: Sequence[Interval]) -> list[Interval]:
    """Return the intersection of two lists of intervals, each in the form that `union` returns."""
    found: list[Interval] = []
    i = j = 0
    while i < len(one) and j < len(other):
        begin, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if begin < end:
            found.append((begin, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return found


def length(intervals: Iterable[Interval]) -> int:
    """Return the total length of intervals."""
    return sum(end - begin for begin, end in intervals)


def clipped(intervals: Iterable[Interval], begin: int, end: int) -> list[Interval]:
    """Return the parts of intervals from `begin` to `end`."""
    return [(max(b, begin), min(e, end)) for b, e in intervals if b < end and e > begin]
