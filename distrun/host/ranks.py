"""Ranks and numbers in messages."""

from __future__ import annotations

from collections.abc import Sequence


def list_ranks(ranks: Sequence[int]) -> str:
    """Return `ranks` as text: `rank 3`, `ranks 0-2, 5`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"rank{'s' if len(ranks) > 1 else ''} {words}"


def count(number: int, noun: str) -> str:
    """Return a text such as `1 rank` or `2 ranks`."""
    return f"{number} {noun}{'s' * (number != 1)}"
