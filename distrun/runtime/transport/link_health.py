"""The health of the TCP connections with a rank of another host, for a wait that has taken too long.

Nothing here runs before that. Then it costs a few system calls that ask the kernel.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from distrun.host.connections.tcp_condition import RECENT, Finding, TcpCondition

if TYPE_CHECKING:
    from distrun.runtime.transport.network import Network

_MOST = 3  # ranks that a report is about
_GRAVITY = list(Finding)


def trouble_with(network: Network, rank: int) -> str:
    """Return a sentence about the worst connection with `rank`, or "" if all are sound."""
    conditions = _conditions(network, rank)
    if not conditions:
        return ""
    worst = min(conditions, key=lambda each: _GRAVITY.index(each.finding))
    since = max(RECENT, worst.info.idle - 1)  # an answer on another connection since this one was idle
    said = worst.describe(small_pass=any(each.is_answered(since) and not each.packets.lost for each in conditions))
    if not said:
        return ""
    if worst.finding is Finding.UNANSWERED:
        network.alarm(rank)  # a small packet: whether it is answered shows in the next check
    sentence = f"the connection to {network.describe(rank)} {said}"
    return sentence if worst.finding is Finding.NOT_READ else f"{sentence}; {doctor(network, rank)}"


def troubles(network: Network) -> list[str]:
    """Return sentences as of `trouble_with` about the ranks that this one is connected with, at most `_MOST`."""
    found = (trouble_with(network, rank) for rank in network.peers)
    return [sentence for sentence in found if sentence][:_MOST]


def unheard(network: Network, rank: int) -> str:
    """Return a sentence about `rank`, which has reported by an alarm that its messages are not acknowledged."""
    return (
        f"what {network.describe(rank)} sends to rank {network.rank} is not acknowledged, while single bytes arrive: "
        f"packets are lost on the way from there, large ones perhaps; {doctor(network, rank)}"
    )


def answers(network: Network, rank: int) -> bool:
    """Return whether the host of `rank` has answered recently, and nothing is wrong with any connection to it."""
    conditions = _conditions(network, rank)
    harmless = Finding.SOUND, Finding.NOT_READ
    return any(each.is_answered() for each in conditions) and all(each.finding in harmless for each in conditions)


def unanswered(network: Network, rank: int) -> str:
    """Return a clause about `rank`, whose connection has timed out, or "" if no connection to its host is answered.

    The packets that are answered on another connection are small. If some of these were lost as well, the size of
    packets is not the cause.
    """
    answered = [each for each in _conditions(network, rank) if each.is_answered()]
    if not answered:
        return ""
    if all(each.packets.lost for each in answered):
        return f"its host answers, and too many packets are lost on the way; {doctor(network, rank)}"
    return (
        "its host answers small packets, and large ones are lost on the way (an MTU black hole); "
        f"{doctor(network, rank)}"
    )


def is_unheard(network: Network, rank: int) -> bool:
    """Return whether data sent to `rank` is not acknowledged."""
    return any(each.finding is Finding.UNANSWERED for each in _conditions(network, rank))


def doctor(network: Network, rank: int) -> str:
    """Return advice to run the command that checks the path to `rank`."""
    return f"run 'distrun doctor -H {network.hostname(network.rank)},{network.hostname(rank)}'"


def _conditions(network: Network, rank: int) -> list[TcpCondition]:
    found = []
    for connection in network.sockets_with(rank):
        with suppress(OSError):  # it has ended
            if connection.fileno() >= 0:
                found.append(TcpCondition.of(connection))
    return found
