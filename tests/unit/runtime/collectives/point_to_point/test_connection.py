"""A connection for messages: what it does when the other side is not heard."""

from __future__ import annotations

import select
import socket

import pytest
from in_process.connected_ranks import pair_of_sockets

from distrun.host.connections.tcp_info import TcpInfo
from distrun.runtime.collectives.point_to_point.connection import ROOM, Connection


class Ends:
    """A handler that notes how connections end."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def on_end(self, connection: Connection, how: str) -> None:
        self.reasons.append(how)


@pytest.mark.parametrize(("retries", "keepalive", "ends"), [(3, 9.0, 1), (3, 7.0, 0), (0, 9.0, 0)])
def test_a_connection_on_which_nothing_is_answered_any_more_is_given_up(monkeypatch, retries, keepalive, ends):
    monkeypatch.setattr(TcpInfo, "of", lambda connection: TcpInfo(retries, 1, keepalive))
    handler = Ends()
    for pair, expected in ((pair_of_sockets(), ends), (socket.socketpair(), 0)):
        handler.reasons.clear()
        with select.epoll() as epoll, pair[1]:
            connection = Connection(1, pair[0], epoll, handler, memoryview(bytearray(ROOM)))
            connection.give_up_if_silent(8.0)
            connection.give_up_if_silent(8.0)
            assert handler.reasons == ["nothing was heard from its host any more"] * expected
            assert connection.is_closed is bool(expected)
            connection.close()
