"""The options by which the kernel notices that a host is gone, and that one is back."""

import math
import socket

import pytest
from hypothesis import given, strategies as st

from distrun.host.connections.tcp_options import set_tcp_options


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (1, 1, 1, 15, 16500)),
        ({"may_be_unread": True}, (1, 1, 1, 15, 0)),
        ({"timeout": 3.0}, (1, 1, 1, 3, 4000)),
        ({"timeout": 2.0}, (1, 1, 1, 2, 3000)),
        ({"timeout": 60.0}, (1, 6, 6, 10, 66000)),
        ({"timeout": 0}, (0, 1, 1, 1, 2**31 - 1)),  # never: 24 days
        ({"timeout": 1e9}, (1, 32767, 32767, 127, 2**31 - 1)),
        ({"timeout": 1e9, "may_be_unread": True}, (1, 32767, 32767, 127, 2**31 - 1)),
    ],
)
def test_a_host_counts_as_dead_after_the_timeout(options, expected):
    names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    with socket.socket() as connection:
        set_tcp_options(connection, **options)
        is_probed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert (is_probed, *(connection.getsockopt(socket.IPPROTO_TCP, name) for name in names)) == expected


@pytest.mark.parametrize(("timeout", "pause"), [(0, 1000), (3, 1000), (15, 1500), (60, 6000), (1e9, 120000)])
def test_what_is_lost_is_sent_again_often_enough_for_a_cut_to_be_over_soon(timeout, pause):
    with socket.socket() as connection:
        set_tcp_options(connection, timeout)
        try:
            assert connection.getsockopt(socket.IPPROTO_TCP, 44) == pause
        except OSError:
            pytest.skip("TCP_RTO_MAX_MS needs Linux 6.15")


@given(st.floats(1, 840))
def test_the_kernel_retries_for_longer_than_the_timeout_where_data_may_be_unread(timeout):
    """The sum of the pauses of a connection in Linux, `tcp_model_timeout`, with 15 retries."""
    with socket.socket() as connection:
        set_tcp_options(connection, timeout, may_be_unread=True)
        try:
            most = connection.getsockopt(socket.IPPROTO_TCP, 44) / 1000
        except OSError:
            most = 120.0
    doublings = int(math.log2(most / 0.2))
    limit = ((2 << doublings) - 1) * 0.2 + (15 - doublings) * most if doublings < 15 else 0
    assert limit > timeout
