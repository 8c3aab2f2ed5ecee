"""Decisions: what the coordinator tells the ranks to do, and in which order."""

from __future__ import annotations

from dataclasses import dataclass

from distrun.runtime.operations.request import Request

LONGEST_LIST = 1 << 14
"""Numbers in one message."""

Key = tuple[int, str | int]  # process set, then the name or, unnamed, the place in the order


@dataclass(frozen=True)
class Execute:
    """Carry out these numbered requests, in this order; neighbours in the list may be fused."""

    numbers: list[int]


@dataclass(frozen=True)
class Define:
    """Carry out this request and, unless it is -1, remember the number it has from now on."""

    number: int
    request: Request


@dataclass(frozen=True)
class Fail:
    """Give up the operation under this key, with this text, on these ranks, which have all submitted it."""

    key: Key
    text: str
    ranks: tuple[int, ...]
    is_stall: bool = False


Decision = Execute | Define | Fail
