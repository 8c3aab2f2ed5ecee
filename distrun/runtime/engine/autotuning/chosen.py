"""The results of autotuning, for programs that ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Tuned", "autotuned"]

Value = int | str
Setting = Mapping[str, Value]
"""Values by the names of settings, such as `bucket_bytes`."""

_BYTES = ("bucket_bytes", "first_bucket_bytes", "fusion_threshold")


@dataclass(frozen=True)
class Tuned:
    """One result of autotuning."""

    what: str
    """`gradients`: the buckets of a torch `DistributedOptimizer`. `operations`: the fusion of small operations."""
    setting: Mapping[str, Value]
    """The chosen values by name. The names are the ones of `DISTRUN_*` in small letters."""
    default: Mapping[str, Value]
    """These settings without autotuning."""
    seconds: float | None
    """The median step time with the best candidate, chosen or not, on the slowest rank. None if no candidate was
    measured against the default at the end."""
    default_seconds: float | None
    """The median step time with the default, measured in the same pairs of steps as `seconds`."""
    steps: int
    """The number of steps that the tuning took."""
    world: int
    """The number of the world, which is 1 unless the job is elastic. See `generation`."""
    why: str = ""
    """Why the tuning ended early, or empty."""

    @property
    def is_default(self) -> bool:
        """Whether the default remains."""
        return self.setting == self.default

    def __str__(self) -> str:
        """The line that is printed: `bucket_bytes 100 MiB instead of 25 MiB: 41.2 ms per step instead of 45.0`."""
        if self.is_default:
            return f"{self.what}: the default remains, {self._why_not()}"
        changes = ", ".join(
            f"{name} {_shown(name, value)} instead of {_shown(name, self.default[name])}"
            for name, value in self.setting.items()
            if value != self.default[name]
        )
        return f"{changes}: {_ms(self.seconds)} ms per step instead of {_ms(self.default_seconds)}"

    def _why_not(self) -> str:
        if self.why:
            return self.why
        if not self.steps:
            return "there is nothing to choose from"
        return "nothing was clearly faster" if self.seconds else "nothing seemed faster"


_tuned: list[Tuned] = []


def autotuned() -> tuple[Tuned, ...]:
    """Return the results of autotuning in this job so far, the latest last. See `DISTRUN_AUTOTUNE`.

    Rank 0 has all of them. Other ranks have the results about gradient buckets, but not the ones about the fusion of
    operations, which rank 0 decides for all. Empty while the first tuning is in progress, and where autotuning is off.
    """
    return tuple(_tuned)


def note(tuned: Tuned) -> None:
    """Add a result to `autotuned()`."""
    _tuned.append(tuned)


def _shown(name: str, value: Value) -> str:
    """Format a value for people: `25 MiB`."""
    if name not in _BYTES or not isinstance(value, int):
        return str(value) or "unchanged"
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value} bytes"


def _ms(seconds: float | None) -> str:
    """Format a time as milliseconds with three digits."""
    value = (seconds or 0.0) * 1e3
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"
