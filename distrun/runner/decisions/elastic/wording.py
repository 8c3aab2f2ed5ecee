"""The texts that the user of an elastic job reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distrun.host.ranks import count, list_ranks
from distrun.runner.decisions.elastic.actions import Generation, Member
from distrun.runner.decisions.elastic.options import ElasticOptions
from distrun.runner.decisions.elastic.processes import Process
from distrun.runner.decisions.elastic.workforce import Workforce


def holders(members: Sequence[Member]) -> str:
    """Return a text such as `ranks 0-3 on a and b`."""
    hosts = list(dict.fromkeys(member.host for member in members))
    where = f"{', '.join(hosts[:-1])} and {hosts[-1]}" if len(hosts) > 1 else hosts[0]
    return f"{list_ranks([member.rank for member in members])} on {where}"


def begun(generation: Generation, has_survivors: bool, lost: Sequence[Member]) -> str:
    """Return how a job continues, and that the training state of the members `lost` is lost, if there are any."""
    ranks = count(len(generation.members), "rank")
    if has_survivors:
        return f"generation {generation.number} goes on with {ranks}"
    text = f"{ranks} {'starts' if len(generation.members) == 1 else 'start'} again"
    return f"{text}: the training state is lost with {holders(lost)}" if lost else text


def change(joining: int, leavers: Iterable[Process]) -> str:
    """Return why members are to leave a generation: `2 ranks join and 1 rank on h3 leaves`."""
    hosts = [process.host for process in leavers]
    parts = []
    if joining:
        parts.append(f"{count(joining, 'rank')} {'joins' if joining == 1 else 'join'}")
    if hosts:
        where = ", ".join(dict.fromkeys(hosts))
        parts.append(f"{count(len(hosts), 'rank')} on {where} {'leaves' if len(hosts) == 1 else 'leave'}")
    return " and ".join(parts)


def no_boundary(late: Sequence[Process], reason: str, seconds: float) -> str:
    """Return a text that says which members a planned change waits for, and what the user can do."""
    others = f" and {count(len(late) - 1, 'other')}" if len(late) > 1 else ""
    return (
        f"{reason}: waiting for {late[0].description}{others}, without a step boundary for {seconds:g} s; so that "
        "ranks can come and go, have the training function call state.advance() after each step"
    )


def lack(have: int, options: ElasticOptions, workforce: Workforce, now: float) -> str:
    """Return why a job ends that had too few ranks for too long, with a line for each thing that was missing."""
    hosts = workforce.hosts
    lines = [
        f"the job had {have} of the {options.min_np} ranks of --min-np for the {options.elastic_timeout:g} s of "
        "--elastic-timeout"
    ]
    lines += [f"    host {host}: {reason}" for host, reason in hosts.missing().items()]
    lines += [f"    host {host} is still being connected to" for host in hosts.connecting if host not in hosts.away]
    lines += [f"    {newcomer.description} has not arrived" for newcomer in workforce.processes.arriving.values()]
    lines += [
        f"    host {host}: {count(slots, 'slot')} barred after failures"
        for host, slots in workforce.barred(now).items()
    ]
    if len(lines) == 1:
        slots = count(sum(hosts.slots.values()), "slot")
        lines.append(f"    the hosts have no more than {slots}" if hosts.slots else "    no host is listed")
    return "\n".join(lines)
