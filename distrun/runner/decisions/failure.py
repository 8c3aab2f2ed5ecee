"""The failure that ends a job, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from distrun.runner.protocol.exits import RankExit


@dataclass(frozen=True)
class Failure:
    """The first failure, which is reported."""

    rank: int | None
    """None when no rank but an agent, or the launch itself, failed."""
    status: int
    what: str
    """The predicate of the report's first sentence; the whole sentence when there is no rank."""
    exit: RankExit | None = None
    place: str = ""
    """Where the rank's script failed: `ValueError at train.py:19 in train, after 5 steps`; empty = it is not known."""

    def explained(self, why: str) -> Failure:
        """Return this failure, with a clause that says why the job ends for it."""
        return replace(self, what=f"{self.what}; {why}")


def refused(reasons: Mapping[str, str], status: int = 2) -> Failure:
    """Return one failure for all hosts that cannot be used; its status is 2 where it is for the user to correct."""
    if len(reasons) == 1:
        ((host, reason),) = reasons.items()
        return Failure(None, status, f"host {host} cannot be used, so no rank was started: {reason}")
    lines = [f"    {host}: {reason}" for host, reason in reasons.items()]
    return Failure(None, status, "\n".join([f"{len(lines)} hosts cannot be used, so no rank was started:", *lines]))
