"""The failure that ends a job, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from distrun.runner.protocol.exits import RankExit


@dataclass(frozen=True)
class Failure:
    """The failure that is reported: the first one."""

    rank: int | None
    """None when no rank but an agent, or the launch itself, failed."""
    status: int
    what: str
    """The predicate of the report's first sentence, or the whole sentence if there is no rank."""
    exit: RankExit | None = None
    place: str = ""
    """Where the rank's script failed: `ValueError at train.py:19 in train, after 5 steps`. Empty = it is not known."""

    def explained(self, why: str) -> Failure:
        """Return this failure, with a clause that says why the job ends for it."""
        return replace(self, what=f"{self.what}; {why}")


def refused(reasons: Mapping[str, str], status: int = 2) -> Failure:
    """Return one failure for all hosts that cannot be used. Its status is 2 if the user can correct it."""
    if len(reasons) == 1:
        ((host, reason),) = reasons.items()
        return Failure(None, status, f"host {host} cannot be used, so no rank was started: {reason}")
    lines = [f"    {host}: {reason}" for host, reason in reasons.items()]
    return Failure(None, status, "\n".join([f"{len(lines)} hosts cannot be used, so no rank was started:", *lines]))
