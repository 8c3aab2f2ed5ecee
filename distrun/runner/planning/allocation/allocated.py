"""The type of an allocation, and helpers for reading schedulers' lists of hosts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from distrun.errors import UsageError
from distrun.runner.planning.hosts import Host


@dataclass(frozen=True)
class Allocation:
    """The hosts that a scheduler has allocated to this job."""

    scheduler: str
    """Slurm, PBS, LSF, Grid Engine or Flux."""
    hosts: tuple[Host, ...]
    """In the scheduler's order, each with its slots."""
    name: str = ""
    """The scheduler's id of the job."""

    def __str__(self) -> str:
        name = f" {self.name}" if self.name else ""
        return f"{self.scheduler} job{name}: {','.join(map(str, self.hosts))}"


def remedy(scheduler: str) -> str:
    """Return the end of a sentence about something that the scheduler should have set."""
    return f"let {scheduler} set it, or give the hosts with -H"


def read_lines(variable: str, file: str, scheduler: str) -> list[str]:
    """Return the non-empty lines of a scheduler's file, whose path `variable` holds.

    Raises:
        UsageError: the file cannot be read, or has no such line.
    """
    try:
        lines = [line for line in Path(file).read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"{variable}={file!r} cannot be read: {reason}; give the hosts with -H") from None
    if not lines:
        raise UsageError(f"{variable}={file!r} names no host: {remedy(scheduler)}")
    return lines
