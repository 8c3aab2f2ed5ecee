"""The network between the hosts: every pair is measured, but no host is in two measurements at once."""

from __future__ import annotations

from collections.abc import Sequence

from distrun.runner.system.fan_out import call_for_each
from distrun.tools.doctor.network.pair import ProbedHost, measure_pair
from distrun.tools.doctor.report import LinkReport

MAX_ROUNDS = 31  # with more than 32 hosts, each is measured with 31 others


def rounds(count: int, most: int = MAX_ROUNDS) -> list[list[tuple[int, int]]]:
    """Return all pairs of `count` hosts in rounds, such that no host is in two pairs of a round.

    This is the circle method of round-robin tournaments: one host stays, the others move by one place from round to
    round, and with an odd number one of them pauses. In a pair the lower number comes first. Only the first `most`
    rounds are returned.
    """
    places: list[int | None] = [*range(count), *([None] * (count % 2))]
    found = []
    for _ in range(min(most, max(0, len(places) - 1))):
        half = len(places) // 2
        facing = zip(places[:half], reversed(places[half:]), strict=True)
        found.append([(min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None])
        places = [places[0], places[-1], *places[1:-1]]
    return found


def measure_all(ends: Sequence[ProbedHost], network: str) -> tuple[list[LinkReport], list[str]]:
    """Measure the network between all hosts. Return the links, both directions of each pair, and notes for the user.

    Args:
        ends: the hosts.
        network: the value of `--network`.
    """
    found: dict[tuple[str, str], LinkReport] = {}
    schedule = rounds(len(ends))
    for pairs in schedule:
        measured = call_for_each(
            lambda pair: measure_pair(ends[pair[0]], ends[pair[1]], network, len(ends)), pairs, "doctor"
        )
        found |= {(item.source, item.target): item for items in measured for item in items}
    order = [end.host for end in ends]
    links = [found[pair] for pair in ((one, other) for one in order for other in order) if pair in found]
    notes = []
    if len(ends) > len(schedule) + 1:
        notes.append(f"with {len(ends)} hosts, each was measured with {len(schedule)} of the others only")
    return links, notes
