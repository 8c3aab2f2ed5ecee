"""The network as the cause of a stall: what TCP reports about the connections with ranks that others wait for.

The coordinator checks its connections with the missing ranks. Each missing rank checks its own connections when it is
asked for its state. Its answer may be lost on the same path as its earlier messages. So it also sends an alarm, a
single byte on another connection, which reports at least that its messages are not acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from distrun.runtime.transport.control.control_plane import ControlPlane


class NetworkCauses:
    """Explains what the network contributes to the wait for a rank."""

    def __init__(self, control_plane: ControlPlane, describe: Callable[[int], str]) -> None:
        """`describe` returns the text that names a rank in messages."""
        self._control_plane = control_plane
        self._describe = describe

    def of(self, rank: int) -> str:
        """Return a sentence about what is wrong on the path to or from `rank`, or "" if nothing is."""
        return self._control_plane.trouble_with(rank)

    def among(self, missing: Collection[int], answered: Collection[int]) -> list[str]:
        """Return sentences about the paths to the `missing` ranks. `answered` are the ranks that answered a
        question."""
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
        """Return what `of` says of the coordinator. Alarm the coordinator if this rank's messages are not
        acknowledged."""
        self._control_plane.complain()
        return self.of(0)

    def own(self) -> str:
        """Return lines about this rank's connections, for its answer to the coordinator. Alarm it as `to_coordinator`
        does."""
        self._control_plane.complain()
        return "".join(f"\n{sentence}" for sentence in self._control_plane.troubles())


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}"
