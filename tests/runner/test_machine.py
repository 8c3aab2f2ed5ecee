"""What the launcher finds out about its machine."""

from __future__ import annotations

import errno
import ipaddress
import socket
from types import SimpleNamespace

import psutil
import pytest

from distrun.runner.system.machine import (
    address_towards,
    count_gpus,
    default_slots,
    free_port,
    free_ports,
    interfaces,
    is_local,
    local_names,
    reserve_port,
)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "127.1.2.3", "::1", socket.gethostname()])
def test_names_of_this_machine_are_local(name):
    assert is_local(name)


@pytest.mark.parametrize("name", ["192.0.2.1", "no-such-host.invalid"])
def test_other_machines_are_not_local(name):
    assert not is_local(name)


@pytest.mark.parametrize(("value", "count"), [("", 0), ("-1", 0), ("0", 1), ("0,2,3", 3), ("GPU-8a1b,MIG-77", 2)])
def test_the_gpus_chosen_by_the_user_count(monkeypatch, value, count):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert count_gpus() == count


def test_gpus_are_counted_by_what_a_container_sees(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name in ("dev/nvidia0", "dev/nvidia1", "dev/nvidiactl", *(f"gpus/000{n}" for n in range(8))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert count_gpus(str(tmp_path / "dev"), str(tmp_path / "gpus")) == 2
    assert count_gpus(str(tmp_path / "dev"), str(tmp_path / "none")) == 0


def test_without_gpus_there_is_a_slot_per_core(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2})
    assert default_slots() == 3


def test_a_free_port_can_be_listened_on():
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port()))
        server.listen()


def test_free_ports_are_different():
    assert len(set(free_ports(50))) == 50


def test_a_reserved_port_is_for_whoever_shares_it_on_any_address():
    with reserve_port() as keeper, socket.socket() as rank, socket.socket() as stranger:
        place = ("127.0.0.1", keeper.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            stranger.bind(place)
        assert socket.socket().connect_ex(place) == errno.ECONNREFUSED
        rank.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        rank.bind(place)
        rank.listen()
        with socket.create_connection(place), rank.accept()[0]:
            pass


def test_interfaces_have_addresses_that_others_may_know():
    for item in interfaces():
        assert not ipaddress.ip_address(item.address).is_loopback
        assert ipaddress.ip_interface(f"{item.address}/{item.prefix}")


def test_interfaces_that_are_down_or_lead_nowhere_are_left_out(monkeypatch):
    def entry(address, netmask, family=socket.AF_INET):
        return SimpleNamespace(family=family, address=address, netmask=netmask)

    entries = {
        "lo": [entry("127.0.0.1", "255.0.0.0")],
        "eth0": [
            entry("10.0.0.1", "255.255.252.0"),
            entry("fe80::1%eth0", "ffff:ffff:ffff:ffff::", socket.AF_INET6),
            entry("fd00::1", "ffff:ffff:ffff:ffff::", socket.AF_INET6),
            entry("00:11", None, psutil.AF_LINK),
        ],
        "zero": [entry("169.254.0.7", "255.255.0.0")],
        "tun": [entry("10.8.0.1", None)],
        "down": [entry("10.9.0.1", "255.0.0.0")],
    }
    states = {name: SimpleNamespace(isup=name != "down") for name in entries}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: entries)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: states)
    assert interfaces() == [("eth0", "10.0.0.1", 22), ("eth0", "fd00::1", 64), ("tun", "10.8.0.1", 32)]
    entries["eth0"] = entries["tun"] = []
    assert interfaces() == [("zero", "169.254.0.7", 16)]


def test_many_names_are_asked_for_at_once():
    assert local_names(["localhost", "192.0.2.1", "127.0.0.9"]) == {"localhost", "127.0.0.9"}
    assert local_names([]) == set()


def test_the_address_towards_a_host_is_one_of_ours():
    assert address_towards("127.0.0.1") == "127.0.0.1"
    assert address_towards("no-such-host.invalid") == socket.gethostname()
