"""Endpoints are written and read in one way, and free ports are free."""

import errno
import socket

import pytest

from distrun.errors import UsageError
from distrun.host.endpoints import (
    PORTS,
    bracketed,
    format_endpoint,
    free_port,
    free_ports,
    parse_endpoint,
    parse_ports,
    reserve_port,
)


@pytest.mark.parametrize(
    ("address", "text"), [("10.0.0.1", "10.0.0.1:7"), ("fd00::1", "[fd00::1]:7"), ("node01", "node01:7")]
)
def test_reading_is_the_inverse_of_writing(address, text):
    assert format_endpoint(address, 7) == text
    assert parse_endpoint(text) == (address, 7)


@pytest.mark.parametrize(
    "text",
    ["", "a", ":", "a:", ":7", "[]:7", "a:0", "a:65536", "a:-1", "a:x", "a:٣", "fd00::1:7", "::1", "[::1]", "[::1]7"],
)
def test_everything_else_is_no_endpoint(text):
    with pytest.raises(ValueError, match="is not an address and a port from 1 to 65535"):
        parse_endpoint(text)


def test_only_ipv6_is_bracketed():
    assert [bracketed(address) for address in ("::1", "127.0.0.1", "node01")] == ["[::1]", "127.0.0.1", "node01"]


def test_a_free_port_can_be_listened_on():
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port()))
        server.listen()


def test_free_ports_are_different():
    assert len(set(free_ports(50))) == 50


def test_a_reserved_port_is_for_whoever_shares_it_on_any_address():
    with reserve_port() as reservation, socket.socket() as rank, socket.socket() as stranger:
        place = ("127.0.0.1", reservation.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            stranger.bind(place)
        with socket.socket() as client:
            assert client.connect_ex(place) == errno.ECONNREFUSED
        rank.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        rank.bind(place)
        rank.listen()
        with socket.create_connection(place), rank.accept()[0]:
            pass


def test_a_port_is_reserved_on_a_kernel_without_ipv6(monkeypatch):
    real = socket.socket

    def without_ipv6(family=socket.AF_INET, *rest):
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(family, *rest)

    monkeypatch.setattr(socket, "socket", without_ipv6)
    with reserve_port() as reservation:
        assert reservation.family == socket.AF_INET


@pytest.fixture
def three_ports(monkeypatch):
    """A range of three ports, of which the one in the middle is taken."""
    for first in range(30000, 31000, 3):
        try:
            for port in range(first, first + 3):
                with socket.socket() as probe:
                    probe.bind(("", port))
        except OSError:
            continue
        break
    monkeypatch.setenv(PORTS, f"{first}-{first + 2}")
    with socket.socket() as taken:
        taken.bind(("", first + 1))
        yield first


def test_ports_are_chosen_from_those_that_are_allowed(three_ports):
    assert sorted(free_ports(2)) == [three_ports, three_ports + 2]
    with reserve_port() as one, reserve_port() as other:
        assert {one.getsockname()[1], other.getsockname()[1]} == {three_ports, three_ports + 2}


def test_a_full_range_is_named_with_the_remedy(three_ports):
    with pytest.raises(UsageError, match=f"no port of {three_ports}-{three_ports + 2} is free on .* --ports"):
        free_ports(3)


@pytest.mark.parametrize(
    ("text", "ports"), [("5000-5002", range(5000, 5003)), ("7", range(7, 8)), (" 1 - 2 ", range(1, 3))]
)
def test_ranges_of_ports(text, ports):
    assert parse_ports(text) == ports


@pytest.mark.parametrize("text", ["", "5-4", "0-3", "1-65536", "a-b", "1-2-3", "-5"])
def test_other_ranges_of_ports_are_refused(text):
    with pytest.raises(UsageError, match="is no range of ports: allowed are FIRST-LAST"):
        parse_ports(text)
