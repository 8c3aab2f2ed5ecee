"""Merging: makes the parameters of all hosts equal at once, whatever the state of each.

It is used at the end of training, before weights are saved or evaluated, and after ranks have joined or left. Hosts may
be at different steps: one has used an average that another was still waiting for when a third was lost, and new hosts
have not trained at all. So the ranks exchange their states, take the newest anchors, and average their progress from
there. The average is the new anchor. It is applied without momentum, so frequent merging does not move the parameters
further.

No rank need be at a step boundary when a host is lost: all ranks wait for the merge at the end of a step, and the state
of each is as good as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distrun.methods.diloco.optimizer import OuterOptimizer
from distrun.methods.diloco.parameters import Array, nesterov
from distrun.runtime import collectives
from distrun.runtime.world import world


@dataclass(frozen=True)
class MergeState:
    """The state of a rank before a merge."""

    step: int
    has_anchor: bool
    has_moved: bool
    versions: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """The plan of a merge, which follows from the states of all ranks."""

    leader: int
    """The rank with the newest anchors."""
    step: int
    """The number of inner steps of all ranks after the merge."""
    sends: bool
    """Whether the leader must send its anchors, because a rank has others."""
    movers: int
    """The number of ranks that have trained since their anchor."""


def plan(standings: Sequence[MergeState]) -> Plan | None:
    """Return the plan of the merge, or None if no rank has an anchor."""
    leader = max(range(len(standings)), key=lambda rank: _newness(standings[rank]))
    best = standings[leader]
    if not best.has_anchor:
        return None
    sends = any(not each.has_anchor or each.versions != best.versions for each in standings)
    return Plan(leader, max(each.step for each in standings), sends, sum(each.has_moved for each in standings))


def _newness(standing: MergeState) -> tuple[bool, int, int]:
    return standing.has_anchor, sum(standing.versions), standing.step


def merge(outer: OuterOptimizer) -> None:
    """Give all ranks the average of their parameters, which becomes the anchor. All ranks of the job call this.

    Raises:
        CollectiveError: a rank is gone. The next generation can merge.
    """
    exchange = outer.under_way
    if exchange is not None and exchange.engine is world.engine():
        outer.finish()
    own = MergeState(outer.step, outer.is_agreed, outer.has_moved and outer.is_agreed, tuple(outer.versions))
    row = np.array([[own.step, own.has_anchor, own.has_moved, *own.versions]], np.int64)
    rows = collectives.allgather(row, f"{outer.name}.standings").tolist()
    found = plan([MergeState(row[0], bool(row[1]), bool(row[2]), tuple(row[3:])) for row in rows])
    if found is None:
        if outer.anchors:
            outer.drop_anchor()  # the parameters may have been replaced by another rank's
        return
    outer.step, outer.has_moved = found.step, own.has_moved
    if not outer.anchors:
        outer.make_room()
    versions = rows[found.leader][3:]
    for number in range(len(outer.fragments)):
        _merge_fragment(outer, number, found, versions[number])
    outer.under_way = None
    outer.kept = {}
    outer.is_agreed, outer.has_moved = True, False


def _merge_fragment(outer: OuterOptimizer, number: int, found: Plan, version: int) -> None:
    parameters, fragment, anchor = outer.parameters, outer.fragments[number], outer.anchors[number]
    gradient = outer.gradient_room(fragment)
    start = _start(outer, number, version)
    if found.sends:
        parameters.broadcast(anchor, found.leader, f"{outer.name}.{number}.anchor")
        if outer.velocities:
            parameters.broadcast(outer.velocities[number], found.leader, f"{outer.name}.{number}.velocity")
    outer.versions[number] = version
    if not found.movers:
        return
    if outer.has_moved:
        _own_parameters(outer, number, gradient)
        parameters.subtract(anchor if start is None else start, gradient, gradient)
        gradient *= world.size() / found.movers
    else:
        gradient[:] = 0
    outer.average(number, gradient).wait()
    nesterov(anchor, gradient, None, 1.0, 0.0, parameters.piece)
    parameters.write(fragment, anchor)
    outer.used(number)
    outer.kept.pop(number, None)


def _start(outer: OuterOptimizer, number: int, version: int) -> Array | None:
    """Return the parameters where this host began the progress that the newest anchor lacks. None: at that anchor.

    The newest anchor includes all progress that was sent for it, even if this host has not used it yet.
    """
    kept, exchange = outer.kept.get(number), outer.under_way
    if kept is not None:
        return kept.sent if kept.version + 1 == version else None
    is_under_way = exchange is not None and exchange.fragment == number and outer.versions[number] + 1 == version
    return exchange.sent if exchange is not None and is_under_way else None


def _own_parameters(outer: OuterOptimizer, number: int, out: Array) -> None:
    kept = outer.kept.get(number)
    if kept is not None:
        out[:] = kept.parameters
    else:
        outer.parameters.read(outer.fragments[number], out)
