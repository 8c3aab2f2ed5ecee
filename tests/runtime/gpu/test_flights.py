"""What is in flight is kept until it has landed; what does not land is reported, then given up. No device, no time."""

import logging

import pytest

from distrun.errors import StallError
from distrun.runtime.gpu.driver import DeviceError
from distrun.runtime.gpu.flights import Flight, Flights
from distrun.runtime.neighbourhood import Patience


class Device:
    """Events are names; those in `passed` are done."""

    def __init__(self):
        self.passed = set()
        self.failure = None

    def is_done(self, event):
        if self.failure:
            raise DeviceError(self.failure)
        return event in self.passed


@pytest.fixture
def device():
    return Device()


def flight(name, cargo=()):
    return Flight(f"allreduce '{name}'", [f"{name} ready"], f"{name} finished", cargo)


def test_cargo_is_kept_until_the_device_is_done_with_it(device):
    flights = Flights(device.is_done, Patience())
    flights.add(flight("a"))
    flights.add(flight("b"))
    device.passed |= {"a finished"}
    flights.look(1.0)
    assert [left.what for left in flights.take_all()] == ["allreduce 'b'"]
    assert not flights


def test_nothing_lands_before_what_was_queued_first(device):
    flights = Flights(device.is_done, Patience())
    flights.add(flight("a"))
    flights.add(flight("b"))
    device.passed |= {"b finished"}  # it cannot be on a stream; whoever fakes it gets nothing released early
    flights.look(1.0)
    assert len(flights) == 2


def test_what_its_stream_waits_for_is_let_go_early():
    one, other = ["equal"], ["equal"]
    flying = flight("a", [one, other])
    flying.release(one)
    assert [left is other for left in flying.cargo] == [True]


def test_own_computation_is_not_waiting(device, caplog):
    flights = Flights(device.is_done, Patience(warning=10, timeout=20))
    flights.add(flight("a"))
    for now in (0.0, 100.0, 1000.0):  # a long step of this rank's own
        flights.look(now)
    device.passed |= {"a ready"}
    flights.look(1000.0)
    flights.look(1019.0)
    with pytest.raises(StallError, match=r"gave up after 20 s: allreduce 'a': .* this rank's GPU is ready"):
        flights.look(1020.0)
    assert "waiting for 19 s: allreduce 'a'" in caplog.text


def test_warnings_come_each_time_the_wait_has_doubled(device, caplog):
    caplog.set_level(logging.WARNING, "distrun")
    flights = Flights(device.is_done, Patience(warning=10))
    flights.add(flight("a"))
    device.passed |= {"a ready"}
    for now in range(0, 100):
        flights.look(float(now))
    assert [record.args[0] for record in caplog.records] == [10.0, 20.0, 40.0, 80.0]


def test_each_operation_has_its_own_time(device):
    flights = Flights(device.is_done, Patience(timeout=20))
    flights.add(flight("a"))
    flights.add(flight("b"))
    device.passed |= {"a ready", "b ready"}
    flights.look(0.0)
    device.passed |= {"a finished"}
    flights.look(19.0)
    flights.look(38.0)
    with pytest.raises(StallError, match="'b'"):
        flights.look(39.0)


def test_for_ever_is_for_ever(device, caplog):
    flights = Flights(device.is_done, Patience(warning=0, timeout=0))
    flights.add(flight("a"))
    device.passed |= {"a ready"}
    flights.look(0.0)
    flights.look(1e9)
    assert not caplog.records


def test_a_failed_device_is_an_error(device):
    flights = Flights(device.is_done, Patience())
    flights.add(flight("a"))
    device.failure = "GPU 0 has failed: cudaErrorIllegalAddress"
    with pytest.raises(DeviceError, match="IllegalAddress"):
        flights.look(0.0)
