"""The interfaces of a machine, and those that a job may use."""

import ipaddress
import json
import socket
from types import SimpleNamespace

import psutil
import pytest

from distrun.errors import UsageError
from distrun.host import interfaces
from distrun.host.interfaces import (
    Interface,
    _prefix,
    addresses_on_own_host,
    further_networks,
    is_loopback,
    is_numeric,
    matching,
    own_interfaces,
    parse_network,
    reachable,
)

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
        ("", ALL),
    ],
)
def test_names_and_subnets_choose_interfaces_in_their_order(network, expected):
    assert matching(ALL, network, "host 'a'") == expected


@pytest.mark.parametrize("network", ["eth1", "172.16.0.0/12", "fd01::/16", "eth"])
def test_a_network_that_is_not_here_is_refused_with_what_there_is(network):
    with pytest.raises(UsageError) as error:
        matching(ALL[1:], network, "host 'a'")
    assert str(error.value) == (
        f"--network {network!r} allows no interface of host 'a': give one of eth0 (10.1.2.3/16), eth0 (fd00::3/64), "
        "ib0 (192.168.5.3/24), or their subnets (by --network or DISTRUN_NETWORK)"
    )


def test_where_there_are_no_interfaces_any_network_is_right():
    assert matching([], "eth1", "host 'a'") == []


@pytest.mark.parametrize("network", ["10.0.0.0/33", "eth0,", ",", "x/8", "fd00::zz"])
def test_an_entry_that_is_neither_a_name_nor_a_subnet_is_an_error(network):
    with pytest.raises(UsageError, match="is neither an interface nor a subnet"):
        parse_network(network)


def test_entries_are_names_and_subnets():
    entries = ["eth0", ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fd00::3/128")]
    assert parse_network("eth0, 10.1.2.3/8,fd00::3") == entries


def test_this_machine_has_a_loopback_that_no_other_host_can_reach():
    assert LO in own_interfaces()
    assert LO not in reachable(own_interfaces())


def entry(address, netmask, family=socket.AF_INET):
    return SimpleNamespace(family=family, address=address, netmask=netmask)


@pytest.fixture
def entries(monkeypatch):
    """The interfaces of a machine, as psutil lists them."""
    found = {
        "lo": [entry("127.0.0.1", "255.0.0.0")],
        "eth0": [
            entry("fe80::1%eth0", "ffff:ffff:ffff:ffff::", socket.AF_INET6),
            entry("fd00::1", "ffff:ffff:ffff:ffff::", socket.AF_INET6),
            entry("10.0.0.1", "255.255.252.0"),
            entry("00:11", None, psutil.AF_LINK),
        ],
        "zero": [entry("169.254.0.7", "255.255.0.0")],
        "tun": [entry("10.8.0.1", None), entry("fd08::1", None, socket.AF_INET6)],
        "down": [entry("10.9.0.1", "255.0.0.0")],
    }
    states = {name: SimpleNamespace(isup=name != "down") for name in found}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: states)
    return found


def test_interfaces_that_are_down_and_ipv6_of_the_link_alone_are_left_out(entries):
    assert own_interfaces() == [
        ("lo", "127.0.0.1", 8),
        ("eth0", "10.0.0.1", 22),
        ("eth0", "fd00::1", 64),
        ("zero", "169.254.0.7", 16),
        ("tun", "10.8.0.1", 32),
        ("tun", "fd08::1", 128),
    ]


def test_other_hosts_reach_link_local_addresses_only_where_there_is_nothing_else(entries):
    assert [interface.name for interface in reachable(own_interfaces())] == ["eth0", "eth0", "tun", "tun"]
    del entries["eth0"], entries["tun"]
    assert reachable(own_interfaces()) == [("zero", "169.254.0.7", 16)]
    del entries["zero"]
    assert reachable(own_interfaces()) == []


def test_an_interface_survives_json():
    assert Interface(*json.loads(json.dumps(ETH0_6))) == ETH0_6


def test_an_interface_knows_its_subnet():
    assert (ETH0.subnet, ETH0_6.subnet) == (ipaddress.ip_network("10.1.0.0/16"), ipaddress.ip_network("fd00::/64"))


@pytest.mark.parametrize(("address", "all_bits"), [("0.0.0.0", 32), ("::", 128)])
def test_netmasks_become_prefixes(address, all_bits):
    for prefix in range(all_bits + 1):
        assert _prefix(address, str(ipaddress.ip_network(f"{address}/{prefix}").netmask)) == prefix


@pytest.mark.parametrize(
    ("address", "expected"), [("127.1.2.3", True), ("::1", True), ("10.0.0.1", False), ("fe80::1%eth0", False)]
)
def test_loopback_is_told_from_other_addresses(address, expected):
    assert is_loopback(address) is expected
    assert is_numeric(address)


@pytest.mark.parametrize("name", ["localhost", "node01", "10.0.0", ""])
def test_names_are_not_addresses(name):
    assert not is_numeric(name)


def test_a_name_that_means_the_loopback_to_its_own_host_alone_means_all_its_addresses(monkeypatch):
    """As 127.0.1.1 for its own name in Debian's /etc/hosts."""
    found = [(socket.AF_INET, 1, 6, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(interfaces.socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(interfaces, "own_interfaces", lambda: [LO, ETH0])
    assert addresses_on_own_host("alpha") == ["127.0.0.1", "10.1.2.3", "127.0.1.1"]
    assert addresses_on_own_host("localhost") == ["127.0.1.1"]
    assert addresses_on_own_host("127.0.1.1") == ["127.0.1.1"]


def test_traffic_is_spread_over_interfaces_that_the_user_has_named():
    there = [Interface("eth0", "10.0.0.1", 24), Interface("eth1", "10.1.0.1", 24), Interface("eth1", "fd00::1", 64)]
    assert further_networks(there, "eth0,eth1", "10.0.0.1") == [there[1]]
    assert further_networks(there, "eth0,eth1", "fd00::1") == [there[0]]
    assert further_networks(there, "10.0.0.0/8", "10.0.0.1") == []  # not named one by one
    assert further_networks(there[:1], "eth0,eth1", "10.0.0.1") == []
    assert further_networks(there, "eth0,eth1", "127.0.0.1") == []


def test_interfaces_without_carrier_come_last_and_those_that_are_down_only_by_an_address_that_is_in_use(monkeypatch):
    states = {"br0": "up,broadcast", "eth0": "broadcast", "eth1": "up,running", "eth2": "up", "lo": "up,running"}
    addresses = {
        name: [SimpleNamespace(family=socket.AF_INET, address=f"10.0.0.{number}", netmask="255.0.0.0")]
        for number, name in enumerate(states)
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
    stats = {name: SimpleNamespace(isup="running" in flags, flags=flags) for name, flags in states.items()}
    monkeypatch.setattr(psutil, "net_if_stats", lambda: stats)
    assert [interface.name for interface in own_interfaces()] == ["eth1", "lo", "br0", "eth2"]
    assert [interface.name for interface in own_interfaces("10.0.0.1")] == ["eth1", "lo", "br0", "eth2", "eth0"]
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {"eth0": SimpleNamespace(isup=False)})  # before psutil 5.9.3
    assert own_interfaces() == []
