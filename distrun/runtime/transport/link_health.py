"""The health of the connections with a rank of another host, for those who have waited for it too long.

Nothing here runs before that, and all it takes then is to ask the kernel.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from distrun.host.connections.tcp_condition import RECENT, Finding, TcpCondition

if TYPE_CHECKING:
    from distrun.runtime.transport.network import Network

_MOST = 3  # ranks that are told of
_GRAVITY = list(Finding)


def trouble_with(network: Network, rank: int) -> str:
    """Return a sentence about the worst connection with a rank, by what TCP says; empty when all are sound."""
    conditions = _conditions(network, rank)
    if not conditions:
        return ""
    worst = min(conditions, key=lambda each: _GRAVITY.index(each.finding))
    since = max(RECENT, worst.info.idle - 1)  # an answer on another connection came while this one was silent
    said = worst.describe(small_pass=any(each.is_answered(since) and not each.packets.lost for each in conditions))
    if not said:
        return ""
    if worst.finding is Finding.UNANSWERED:
        network.alarm(rank)  # a small packet, whose answer is seen the next time
    sentence = f"the connection to {network.describe(rank)} {said}"
    return sentence if worst.finding is Finding.NOT_READ else f"{sentence}; {doctor(network, rank)}"


def troubles(network: Network) -> list[str]:
    """Return such sentences about all ranks that this one is connected with, a few at most."""
    found = (trouble_with(network, rank) for rank in network.peers)
    return [sentence for sentence in found if sentence][:_MOST]


def unheard(network: Network, rank: int) -> str:
    """Return a sentence about a rank that has said by alarm that its messages do not come through."""
    return (
        f"what {network.describe(rank)} sends to rank {network.rank} is not acknowledged, while single bytes arrive: "
        f"packets are lost on the way from there, large ones perhaps; {doctor(network, rank)}"
    )


def answers(network: Network, rank: int) -> bool:
    """Whether the host of a rank has answered a moment ago, and nothing is wrong with any connection to it."""
    conditions = _conditions(network, rank)
    harmless = Finding.SOUND, Finding.NOT_READ
    return any(each.is_answered() for each in conditions) and all(each.finding in harmless for each in conditions)


def unanswered(network: Network, rank: int) -> str:
    """Return a clause about a rank whose connection has ended in silence; empty when its host is silent altogether.

    Packets that are answered on another connection are small ones. If some of them were lost as well, then it is not
    for their size.
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
    """Whether what we send to a rank is not acknowledged."""
    return any(each.finding is Finding.UNANSWERED for each in _conditions(network, rank))


def doctor(network: Network, rank: int) -> str:
    """Return the command that examines the way to a rank."""
    return f"run 'distrun doctor -H {network.hostname(network.rank)},{network.hostname(rank)}'"


def _conditions(network: Network, rank: int) -> list[TcpCondition]:
    found = []
    for connection in network.sockets_with(rank):
        with suppress(OSError):  # it has come to its end
            if connection.fileno() >= 0:
                found.append(TcpCondition.of(connection))
    return found
