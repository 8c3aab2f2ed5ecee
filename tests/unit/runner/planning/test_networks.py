"""Which addresses hosts reach each other by."""

import pytest

from distrun.errors import UsageError
from distrun.host.interfaces import Interface
from distrun.runner.planning.networks import Networks

A = [
    Interface("docker0", "172.17.0.1", 16),
    Interface("wan0", "203.0.113.5", 28),
    Interface("eth0", "fd00::1", 64),
    Interface("eth0", "10.0.0.1", 24),
    Interface("ib0", "192.168.7.1", 24),
]
B = [
    Interface("ib1", "192.168.7.2", 24),
    Interface("eth1", "10.0.0.2", 24),
    Interface("eth1", "fd00::2", 64),
    Interface("docker0", "172.17.0.1", 16),
]
C = [Interface("eth0", "10.0.0.3", 24), Interface("eth0", "fd00::3", 64)]


def addresses(networks, host):
    return [item.address for item in networks.of(host)]


def test_subnets_of_all_come_before_those_of_some_and_addresses_of_several_hosts_are_dropped():
    networks = Networks({"a": A, "b": B, "c": C})
    assert addresses(networks, "a") == ["10.0.0.1", "fd00::1", "192.168.7.1", "203.0.113.5"]
    assert addresses(networks, "b") == ["10.0.0.2", "fd00::2", "192.168.7.2"]
    assert networks.is_shared(A[3])
    assert not networks.is_shared(A[1])


def test_two_accounts_of_one_machine_meet_on_what_both_have():
    assert addresses(Networks({"a": C, "me@a": C}), "a") == ["10.0.0.3", "fd00::3"]


def test_hosts_without_a_common_subnet_keep_what_they_have():
    networks = Networks(
        {"a": [Interface("ens4", "10.128.0.2", 32)], "b": [Interface("ens4", "10.128.0.3", 32)], "c": []}
    )
    assert addresses(networks, "a") == ["10.128.0.2"]
    assert addresses(networks, "c") == []


def test_the_user_may_choose_and_a_host_without_interfaces_is_no_error():
    networks = Networks({"a": A, "c": C, "d": []}, "eth0,wan0")
    assert addresses(networks, "a") == ["10.0.0.1", "fd00::1", "203.0.113.5"]
    assert addresses(networks, "d") == []


def test_a_choice_that_a_host_does_not_have_is_an_error_that_says_what_it_has():
    with pytest.raises(
        UsageError,
        match=r"--network 'ib0' allows no interface of host 'c': give one of eth0 \(10.0.0.3/24\), eth0 \(fd00::3/64\)",
    ):
        Networks({"a": A, "c": C}, "ib0")
