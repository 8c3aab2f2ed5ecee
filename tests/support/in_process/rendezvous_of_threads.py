"""The rendezvous of a job in one process: each rank is a thread, and rank 0 listens at a port of this machine."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from in_process.calls import DEADLINE as DEADLINE, Caller, started

from distrun.errors import BootstrapError
from distrun.host.connections.dialer import dial
from distrun.runtime.transport.rendezvous.across_hosts import rendezvous_across_hosts
from distrun.runtime.transport.rendezvous.protocol import Rendezvous, RendezvousEndpoint

KEY = bytes(range(32))
HERE = "127.0.0.1"


class RankThread(Caller):
    """One rank's part of the rendezvous."""

    def __init__(self, *arguments: Any) -> None:
        """`arguments` are those of `rendezvous_across_hosts`."""
        super().__init__(rendezvous_across_hosts, *arguments)

    def is_in(self, *functions: str) -> bool:
        """Whether it is inside of one of these functions."""
        frame = sys._current_frames().get(self.ident or 0)
        while frame is not None:
            if frame.f_code.co_name in functions:
                return True
            frame = frame.f_back
        return False


@pytest.fixture
def endpoint(no_descriptors_left: None) -> Iterator[RendezvousEndpoint]:
    """A port that is kept free as an agent does it: bound, and not listening."""
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        keeper.bind(("0.0.0.0", 0))
        yield RendezvousEndpoint(((HERE, keeper.getsockname()[1]),), KEY)


@pytest.fixture
def join(no_descriptors_left: None) -> Iterator[Callable[[Sequence[RankThread]], list[Rendezvous]]]:
    """Return a function that waits for ranks; what they have made is closed at the end of the test."""
    made: list[Rendezvous] = []

    def end(ranks: Sequence[RankThread]) -> list[Rendezvous]:
        joined = [rank.end() for rank in ranks]
        made.extend(joined)
        return joined

    yield end
    close(made)


def close(joined: Sequence[Rendezvous]) -> None:
    """Close what ranks have made."""
    for rendezvous in joined:
        rendezvous.close()


def check_reachable(joined: Sequence[Rendezvous], rank: int) -> None:
    """Check that a rank reaches every other one where its table says."""
    for peer, member in enumerate(joined[rank].members):
        introduction = {"rank": rank, "purpose": "data"}
        dialed = started(dial, [(member.address, member.port)], KEY, introduction, time.monotonic() + DEADLINE)
        connection, said = joined[peer].listener.receive(DEADLINE)
        with connection, dialed.result(DEADLINE).socket:
            assert said == introduction


def errors(ranks: Sequence[RankThread]) -> list[str]:
    """Return the error text of each rank."""
    texts = []
    for rank in ranks:
        with pytest.raises(BootstrapError) as error:
            rank.end().close()
        texts.append(str(error.value))
    return texts
