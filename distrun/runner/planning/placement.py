"""Placing ranks on hosts: how many ranks each host gets, and which ones. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from distrun.errors import UsageError
from distrun.host.numerals import MOST_RANKS, MOST_SLOTS
from distrun.host.ranks import count
from distrun.runner.planning.hosts import Host

_MANY, _PER_CORE = 64, 8
"""More ranks than both on a machine, in all and per core, are started by --oversubscribe only."""


def with_slots(
    hosts: Sequence[Host], slots: int | None, ranks_per_host: int | None, oversubscribe: bool = False
) -> list[Host]:
    """Return the hosts, or this machine if there are none, with the slots that the user gives to all of them.

    Args:
        hosts: the hosts as the user lists them.
        slots: the slots of each host that is listed without slots. None = these stay without.
        ranks_per_host: the slots of every host. None = as listed.
        oversubscribe: whether `ranks_per_host` may exceed the listed slots.

    Raises:
        UsageError: a host has fewer slots than `ranks_per_host`, or more than `MOST_SLOTS`.
    """
    for number, name in (slots, "--slots"), (ranks_per_host, "--ranks-per-host"):
        if number is not None and not 1 <= number <= MOST_SLOTS:
            raise UsageError(f"{name} {number} is not a number of slots of a host: give 1 to {MOST_SLOTS}")
    chosen = [
        host if host.slots or slots is None else replace(host, slots=slots * host.times)
        for host in hosts or [Host("localhost")]
    ]
    for host in chosen:
        if host.slots is not None and host.slots > MOST_SLOTS:
            raise UsageError(f"{host.name} has {host.slots} slots: give it at most {MOST_SLOTS}")
    if ranks_per_host is None:
        return chosen
    for host in chosen:
        if host.slots is not None and host.slots < ranks_per_host and not oversubscribe:
            raise UsageError(
                f"--ranks-per-host {ranks_per_host} is more than the {count(host.slots, 'slot')} of {host.name}: lower "
                "it, give the host more slots, or give --oversubscribe"
            )
    return [replace(host, slots=ranks_per_host) for host in chosen]


def place(
    hosts: Sequence[Host],
    np: int | None,
    default_slots: int,
    *,
    oversubscribe: bool = False,
    by_node: bool = False,
    cores: int | None = None,
) -> list[tuple[Host, int]]:
    """Return the hosts that get ranks, with the number of ranks of each.

    Hosts without slots get `default_slots` each time they are listed, and more if `np` is more than the slots of all
    hosts. With `oversubscribe`, every host takes more. All slots of a host are filled before the next host's. With
    `by_node`, hosts take turns. `cores` are those of the only host, or None.

    Raises:
        UsageError: `np` is not positive, or more than the user's slots, or than the limits of a job, or far more than
            `cores` although nobody has given slots.
    """
    if np is not None and not 1 <= np <= MOST_RANKS:
        raise UsageError(f"-np {np} is not a number of ranks: give 1 to {MOST_RANKS}")
    slots = [default_slots * host.times if host.slots is None else host.slots for host in hosts]
    elastic = [index for index, host in enumerate(hosts) if host.slots is None or oversubscribe]
    size = sum(slots) if np is None else np
    if size > sum(slots) and not elastic:
        stated = ",".join(map(str, hosts))
        raise UsageError(
            f"-np {np} asks for more ranks than the {count(sum(slots), 'slot')} of {stated}: lower -np, give "
            "hosts more slots, or give --oversubscribe"
        )
    if cores is not None and elastic and not oversubscribe and size > max(_MANY, _PER_CORE * cores, default_slots):
        raise UsageError(
            f"-np {size} is more than {_PER_CORE} ranks for each of the {count(cores, 'core')} here: lower -np, or "
            "give --oversubscribe"
        )
    if size > MOST_RANKS:
        raise UsageError(f"the hosts have {size} slots, and a job at most {MOST_RANKS} ranks: give fewer with -np")
    for position in range(size - sum(slots)):
        slots[elastic[position % len(elastic)]] += 1
    if max(slots) > MOST_SLOTS:
        raise UsageError(
            f"-np {np} asks for {max(slots)} ranks on one host, which takes at most {MOST_SLOTS}: lower -np, or give "
            "more hosts"
        )
    counts = Counter(islice(host_of_each_rank(slots, by_node), size))
    return [(host, counts[index]) for index, host in enumerate(hosts) if counts[index]]


def host_of_each_rank(counts: Sequence[int], by_node: bool = False) -> Iterator[int]:
    """Return the index of each rank's host, in rank order. Hosts take turns, or their ranks follow each other."""
    hosts = range(len(counts))
    if not by_node:
        return (host for host in hosts for _ in range(counts[host]))
    return (host for turn in range(max(counts)) for host in hosts if counts[host] > turn)


def parse_ranks(text: str, size: int) -> frozenset[int]:
    """Parse the value of `--rank-filter`, such as `0,2-3`.

    Raises:
        UsageError: the text is not a list of ranks of a job of this size.
    """
    ranks: set[int] = set()
    for entry in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", entry, re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < size:
            raise UsageError(
                f"--rank-filter {text!r}: {entry!r} does not fit; allowed are ranks 0 to {size - 1}, as in 0,2-3"
            )
        ranks.update(range(first, last + 1))
    return frozenset(ranks)


def spread(ranks: int, hosts: int) -> str:
    """Return a text such as `4 ranks on 2 hosts`."""
    return f"{count(ranks, 'rank')} on {count(hosts, 'host')}"
