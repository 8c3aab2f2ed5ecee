"""Merging: all hosts become the same at once, whatever each of them has been through.

That is wanted at the end of training, before weights are saved or judged, and when ranks have come or gone. Then hosts
may be at different steps: one has used an average that another one was still waiting for when a third was lost, and
newcomers have learned nothing. So the ranks tell each other where they are, take the newest anchors, and average how
far each has come from there. That average is the new anchor: momentum has no part in it, so that merging often does
not push the parameters on.

No rank need be at a step boundary when a host is lost: all ranks wait for the merge at the end of a step, and the state
of each is as good as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distrun.methods.diloco.arithmetic import nesterov
from distrun.methods.diloco.optimizer import OuterOptimizer
from distrun.methods.diloco.parameters import Array
from distrun.runtime import collectives
from distrun.runtime.world import world


@dataclass(frozen=True)
class MergeState:
    """The standing of a rank."""

    step: int
    has_anchor: bool
    has_moved: bool
    versions: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """The part of the ranks in a merge, which follows from the standings of all."""

    leader: int
    """The rank with the newest anchors."""
    step: int
    """The inner steps that are behind all of them from now on."""
    sends: bool
    """Whether a rank has other anchors than the leader."""
    movers: int
    """The ranks that have learned something."""


def plan(standings: Sequence[MergeState]) -> Plan | None:
    """Return what the ranks do; None if none of them has an anchor."""
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
        CollectiveError: a rank is gone; the next generation can merge.
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
            outer.drop_anchor()  # the parameters may be another rank's now
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
    """Return where this host has begun what the newest anchor does not have; None: at that anchor.

    The newest anchor has all that was sent for it, even if this host has not used it yet.
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
