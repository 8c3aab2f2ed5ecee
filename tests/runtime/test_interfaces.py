"""Which interfaces a job may use."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrun.errors import UsageError
from distrun.runtime.interfaces import Interface, _prefix, allowed, interfaces, matching

LO = Interface("lo", "127.0.0.1", 8)
ETH0 = Interface("eth0", "10.1.2.3", 16)
ETH0_6 = Interface("eth0", "fd00::3", 64)
IB0 = Interface("ib0", "192.168.5.3", 24)
ALL = [LO, ETH0, ETH0_6, IB0]


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        ("eth0", [ETH0, ETH0_6]),
        ("10.0.0.0/8", [ETH0]),
        ("fd00::/8", [ETH0_6]),
        ("ib0,eth0", [IB0, ETH0, ETH0_6]),
        (" 192.168.5.0/24 , eth1", [IB0]),
        ("10.1.2.3", [ETH0]),
        ("10.1.2.9/16", [ETH0]),
        ("eth0,10.0.0.0/8", [ETH0, ETH0_6]),
        ("0.0.0.0/0", [LO, ETH0, IB0]),
    ],
)
def test_names_and_subnets_choose(network, expected):
    assert allowed(network, ALL) == expected


@pytest.mark.parametrize("network", ["eth1", "172.16.0.0/12", "", ",", "fd01::/16", "eth"])
def test_a_network_that_is_not_here_is_refused_with_what_there_is(network):
    with pytest.raises(UsageError, match=r"fits no interface of .*eth0 10\.1\.2\.3/16, .*--network") as error:
        allowed(network, ALL)
    assert repr(network) in str(error.value)


def test_this_machine_has_a_loopback():
    assert LO in interfaces()
    assert LO in matching("lo")
    assert all(not ipaddress.ip_address(interface.address).is_multicast for interface in interfaces())


@given(st.integers(0, 32))
def test_netmasks_become_prefixes(prefix):
    assert _prefix(str(ipaddress.ip_network(f"0.0.0.0/{prefix}").netmask)) == prefix


@given(st.integers(0, 128))
def test_netmasks_of_ipv6_become_prefixes(prefix):
    assert _prefix(str(ipaddress.ip_network(f"::/{prefix}").netmask)) == prefix
