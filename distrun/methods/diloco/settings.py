"""The settings of outer steps, checked once for all faces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from distrun.contract.settings import WIRE_DTYPES
from distrun.errors import UsageError


@dataclass(frozen=True)
class OuterSettings:
    """The settings of outer steps: when hosts exchange their parameters, and how the average is applied.

    Raises:
        UsageError: a setting is impossible.
    """

    every: int = 50
    """The number of inner steps between two exchanges of the same parameters."""
    outer_lr: float = 0.7
    """The learning rate of outer steps."""
    momentum: float = 0.9
    """The Nesterov momentum of outer steps."""
    wire: str = "int4"
    """The type of outer gradients between hosts. "" for the job's."""
    overlap: bool = True
    """Whether training continues during an exchange."""
    fragments: int = 4
    """The number of fragments of the parameters."""
    warmup: int = 0
    """The number of inner steps at the beginning where all hosts reduce their gradients together."""

    def __post_init__(self) -> None:
        for name, least in (("every", 1), ("fragments", 1), ("warmup", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise UsageError(f"{name}={value!r} must be a whole number, {least} or more")
        if self.fragments > self.every:
            raise UsageError(
                f"fragments={self.fragments} cannot take turns within every={self.every} steps: give at most as many "
                "fragments as steps"
            )
        if not _is_number(self.outer_lr) or not self.outer_lr > 0:
            raise UsageError(f"outer_lr={self.outer_lr!r} must be a number greater than 0, such as 0.7")
        if not _is_number(self.momentum) or not 0 <= self.momentum < 1:
            raise UsageError(f"momentum={self.momentum!r} must be a number from 0 to less than 1, such as 0.9")
        if self.wire not in ("", *WIRE_DTYPES):
            raise UsageError(
                f"wire={self.wire!r} is not a type of the wire: use {', '.join(map(repr, WIRE_DTYPES))}, or None for "
                "that of the job"
            )


def check_equal(given: Sequence[OuterSettings]) -> None:
    """Raise `UsageError` unless `given`, the settings of all ranks in rank order, are equal: else anchors would
    differ."""
    for rank, other in enumerate(given):
        names = [each.name for each in fields(other) if getattr(other, each.name) != getattr(given[0], each.name)]
        if names:
            first, second = (", ".join(f"{name}={getattr(of, name)!r}" for name in names) for of in (given[0], other))
            raise UsageError(
                f"the ranks take different outer steps: rank 0 was given {first}, rank {rank} {second}; give all ranks "
                "the same"
            )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
