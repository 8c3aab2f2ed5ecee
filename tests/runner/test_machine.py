"""What the launcher finds out about its machine."""

from __future__ import annotations

import socket

import pytest

from distrun.runner.machine import address_towards, count_gpus, default_slots, free_port, is_local, local_names


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


def test_many_names_are_asked_for_at_once():
    assert local_names(["localhost", "192.0.2.1", "127.0.0.9"]) == {"localhost", "127.0.0.9"}
    assert local_names([]) == set()


def test_the_address_towards_a_host_is_one_of_ours():
    assert address_towards("127.0.0.1") == "127.0.0.1"
    assert address_towards("no-such-host.invalid") == socket.gethostname()
