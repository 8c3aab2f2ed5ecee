"""TCP_INFO of real connections, and when it means that the other host is gone."""

import socket

import pytest

from distrun.host.connections.tcp_info import SentPackets, TcpInfo


@pytest.mark.parametrize(
    ("info", "is_dead"),
    [
        (TcpInfo(retries=0, unanswered=3, idle=100.0), False),  # it has only just been sent
        (TcpInfo(retries=5, unanswered=3, idle=2.9), False),
        (TcpInfo(retries=1, unanswered=3, idle=3.0), True),
        (TcpInfo(retries=2, unanswered=0, idle=3.5), True),  # probes of a closed window, or keepalives
    ],
)
def test_a_host_that_does_not_answer_what_is_sent_again_is_dead(info, is_dead):
    assert info.is_dead(3.0) == is_dead


def test_the_kernel_is_asked_about_a_real_connection():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as one, listener.accept()[0] as other:
            one.sendall(b"x")
            assert other.recv(1) == b"x"
            for connection in (one, other):
                info = TcpInfo.of(connection)
                assert info.retries == 0
                assert 0 <= info.idle < 30
        with pytest.raises(OSError, match="Bad file descriptor"):
            TcpInfo.of(one)


def test_what_the_kernel_does_not_return_is_0():
    class Emulated:
        def getsockopt(self, level, option, size):
            return b"\1\0\2\0"

    assert TcpInfo.of(Emulated()) == TcpInfo(retries=2, unanswered=0, idle=0.0, resent=2)
    assert SentPackets.of(Emulated()) == SentPackets(0, 0)
