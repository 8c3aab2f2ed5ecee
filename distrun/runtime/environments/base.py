"""The interface of an environment; what its methods mean is documented here and nowhere else."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import ClassVar

from distrun.errors import UsageError
from distrun.runtime.topology import Topology


class Environment(abc.ABC):
    """A way to have been started, read from the environment variables that the launcher left.

    Reading is all it does: no connection is made, nothing is imported, and `environ` is not changed.
    """

    name: ClassVar[str]
    """What messages call it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    @classmethod
    @abc.abstractmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        """Whether `environ` was made by this launcher. It may still be incomplete: `topology` says so."""

    @abc.abstractmethod
    def topology(self) -> Topology:
        """This rank's place.

        Raises:
            UsageError: a variable is missing, is not a whole number, or contradicts another one.
        """

    @abc.abstractmethod
    def job_name(self) -> str:
        """A text that the ranks of this job on this host share, and no other job on this host has at the same time.

        Local ranks meet under a name derived from it. It may differ between hosts, it is not a secret, and having it
        proves nothing. Where a launcher keeps one agent per host the agent is in it, so that two agents of a job
        that really share a machine stay apart, as their local ranks do.
        """

    def job_key(self) -> bytes | None:
        """The secret that the ranks of the job share; None where the launcher gives none."""
        return None

    def _text(self, variable: str) -> str:
        """The value of `variable`, which this environment needs."""
        value = self._environ.get(variable)
        if not value:
            raise UsageError(
                f"{variable} is not set though this looks like a process started by {self.name}: "
                "pass on all of its variables, or start the script with `distrun`"
            )
        return value

    def _number(self, variable: str) -> int:
        """The value of `variable` as a whole number >= 0."""
        value = self._text(variable)
        if not (value.isascii() and value.isdecimal()):
            raise UsageError(
                f"{variable}={value!r} is not a whole number >= 0: "
                f"let {self.name} set it, or start the script with `distrun`"
            )
        return int(value)


def even_cross(launcher: str, rank: int, size: int, local_rank: int, local_size: int) -> tuple[int, int]:
    """The (cross_rank, cross_size) of a rank whose launcher does not say them, if each host has as many ranks.

    Ranks go to hosts in blocks (`--map-by slot`: 0 1 | 2 3) or round robin (`--map-by node`: 0 2 | 1 3). Blocks are
    tried first. A single rank cannot always tell the two apart (rank 2, local rank 0, of three hosts with two ranks
    each fits both), nor can it see that another host has a different number. So with more than one host this is a
    conjecture, right for the default of every MPI; only ranks that talk to each other can be certain.

    Raises:
        UsageError: neither placement fits the numbers.
    """
    if local_size < 1 or size % local_size:
        raise UsageError(
            f"{launcher} started {size} ranks, {local_size} of them on this host, so the hosts differ in their ranks: "
            "start the same number on each, or start the script with `distrun`"
        )
    hosts = size // local_size
    if hosts == 1:
        return 0, 1
    if rank % local_size == local_rank:
        return rank // local_size, hosts
    if rank // hosts == local_rank:
        return rank % hosts, hosts
    raise UsageError(
        f"rank {rank}({size}) is local rank {local_rank}({local_size}), which fits neither ranks in blocks nor round "
        f"robin: let {launcher} place ranks by slot, or start the script with `distrun`"
    )
