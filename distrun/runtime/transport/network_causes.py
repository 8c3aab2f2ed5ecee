"""The network as the cause of a stall: what TCP says of the connections with ranks that others wait for.

The coordinator looks at its connections with the missing ranks, and each of these at its own when it is asked where it
is. What a rank answers may be lost on the same way as what it was to send. So such a rank says at least that much by an
alarm, which is a single byte on another connection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from distrun.runtime.transport.control.control_plane import ControlPlane


class NetworkCauses:
    """The part that the network has in the wait for a rank."""

    def __init__(self, control_plane: ControlPlane, describe: Callable[[int], str]) -> None:
        """`describe` names a rank for people."""
        self._control_plane = control_plane
        self._describe = describe

    def of(self, rank: int) -> str:
        """Return a sentence about what is wrong on the way to or from a rank; empty when nothing is."""
        return self._control_plane.trouble_with(rank)

    def among(self, missing: Collection[int], answered: Collection[int]) -> list[str]:
        """Return sentences about the ways to missing ranks, some of which have answered a question."""
        troubles = {rank: self.of(rank) for rank in sorted(missing)}
        lines = [sentence for sentence in troubles.values() if sentence]
        well = [rank for rank, sentence in troubles.items() if not sentence and self._control_plane.hears_from(rank)]
        for rank in well:
            if rank not in answered:
                lines.append(
                    f"the host of {self._describe(rank)} answers, so the network is hardly the cause: its process is "
                    "stopped, or too busy to answer"
                )
        if not lines and well:
            lines.append(f"the connections with {_ranks(well)} are sound: the network between is not the cause")
        return lines

    def to_coordinator(self) -> str:
        """Return what `of` says of the coordinator, who hears by an alarm if our messages do not come through."""
        self._control_plane.complain()
        return self.of(0)

    def own(self) -> str:
        """Return lines about this rank's connections, for its answer; have the coordinator hear of those with it."""
        self._control_plane.complain()
        return "".join(f"\n{sentence}" for sentence in self._control_plane.troubles())


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}"
