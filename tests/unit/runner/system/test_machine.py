"""The launcher's machine: names, cores and slots."""

import socket

import pytest

from distrun.runner.system.machine import address_towards, default_slots, identity, is_local, local_names

OWN = ["localhost", "127.0.0.1", "127.1.2.3", "::1", socket.gethostname()]


@pytest.mark.parametrize("name", [*OWN, "192.0.2.1", "no-such-host.invalid"])
def test_names_of_this_machine_alone_are_local(name):
    assert is_local(name) == (name in OWN)


def test_without_gpus_there_is_a_slot_per_core(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2})
    assert default_slots() == 3


def test_a_machine_is_known_by_its_boot_its_namespaces_its_name_and_the_user(monkeypatch):
    before = identity()
    assert before == identity() != ""
    monkeypatch.setattr("socket.gethostname", lambda: "container")
    assert identity() != before
    monkeypatch.undo()
    monkeypatch.setattr("os.getuid", lambda: 12345)
    assert identity() != before


def test_many_names_are_asked_for_at_once():
    assert local_names(["localhost", "192.0.2.1", "127.0.0.9"]) == {"localhost", "127.0.0.9"}
    assert local_names([]) == set()


def test_the_address_towards_a_host_is_one_of_ours():
    assert address_towards("127.0.0.1") == "127.0.0.1"
    assert address_towards("no-such-host.invalid") == socket.gethostname()
