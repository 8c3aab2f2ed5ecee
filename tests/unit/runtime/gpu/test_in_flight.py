"""Operations in flight are kept until they are done; one that does not end is reported, then given up. No device, no
time."""

import logging

import pytest

from distrun.errors import JobAbortedError, StallError
from distrun.runtime.gpu.driver import DeviceError
from distrun.runtime.gpu.in_flight import PARTING_TIMEOUT, InFlight, InFlightOperation
from distrun.runtime.operations.timeouts import Timeouts


class Device:
    """A device whose events are names; those in `passed` are done."""

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


def operation(name, handles=()):
    return InFlightOperation(lambda: f"allreduce '{name}'", [f"{name} ready"], f"{name} finished", handles)


def holding(device, *names, **timeouts):
    in_flight = InFlight(device.is_done, Timeouts(**timeouts))
    for name in names:
        in_flight.operations.append(operation(name))
    return in_flight


def test_an_operation_is_kept_until_the_device_is_done_with_it(device):
    in_flight = holding(device, "a", "b")
    device.passed |= {"a finished"}
    in_flight.check(1.0)
    assert [left.describe() for left in in_flight.take_all()] == ["allreduce 'b'"]
    assert not in_flight.operations


def test_no_operation_is_done_before_one_that_was_queued_earlier(device):
    in_flight = holding(device, "a", "b")
    device.passed |= {"b finished"}  # it cannot be on a stream, and nothing is released early
    in_flight.check(1.0)
    assert len(in_flight.operations) == 2


def test_a_handle_whose_stream_waits_is_released_early():
    one, other = ["equal"], ["equal"]
    in_flight_operation = operation("a", [one, other])
    in_flight_operation.release(one)
    assert [left is other for left in in_flight_operation.handles] == [True]


def test_own_computation_is_not_waiting(device, caplog):
    in_flight = holding(device, "a", warning=10, timeout=20)
    for now in (0.0, 100.0, 1000.0):  # a long step of this rank's own
        in_flight.check(now)
    device.passed |= {"a ready"}
    in_flight.check(1000.0)
    in_flight.check(1019.0)
    with pytest.raises(StallError, match=r"gave up after 20 s: allreduce 'a': .* this rank's GPU is ready"):
        in_flight.check(1020.0)
    assert "waiting for 19 s: allreduce 'a'" in caplog.text


def test_warnings_come_each_time_the_wait_has_doubled(device, caplog):
    caplog.set_level(logging.WARNING, "distrun")
    in_flight = holding(device, "a", warning=10)
    device.passed |= {"a ready"}
    for now in range(0, 100):
        in_flight.check(float(now))
    assert [record.args[0] for record in caplog.records] == [10.0, 20.0, 40.0, 80.0]


def test_each_operation_has_its_own_time(device):
    in_flight = holding(device, "a", "b", timeout=20)
    device.passed |= {"a ready", "b ready"}
    in_flight.check(0.0)
    device.passed |= {"a finished"}
    in_flight.check(19.0)
    in_flight.check(38.0)
    with pytest.raises(StallError, match="'b'"):
        in_flight.check(39.0)


def test_for_ever_is_for_ever(device, caplog):
    in_flight = holding(device, "a", warning=0, timeout=0)
    device.passed |= {"a ready"}
    in_flight.check(0.0)
    in_flight.check(1e9)
    assert not caplog.records


def test_a_failed_device_is_an_error(device):
    in_flight = holding(device, "a")
    device.failure = "GPU 0 has failed: cudaErrorIllegalAddress"
    with pytest.raises(DeviceError, match="IllegalAddress"):
        in_flight.check(0.0)


def test_an_operation_that_a_rank_has_left_without_is_given_up(device):
    left = {}
    in_flight = InFlight(device.is_done, Timeouts(), left.get)
    in_flight.operations.append(operation("a"))
    device.passed |= {"a ready"}
    for now in (0.0, 100.0):  # the other rank may take any time
        in_flight.check(now)
    left[0] = "rank 1 has left"
    for now in (100.0, 99.9 + PARTING_TIMEOUT):  # it may have begun it, and its GPU not be ready
        in_flight.check(now)
    with pytest.raises(JobAbortedError, match=r"^allreduce 'a': rank 1 has left$"):
        in_flight.check(100.0 + PARTING_TIMEOUT)


def test_what_the_rank_that_left_has_begun_may_end(device):
    in_flight = InFlight(device.is_done, Timeouts(), {0: "rank 1 has left"}.get)
    in_flight.operations.append(operation("a"))
    in_flight.operations.append(operation("b"))
    device.passed |= {"a ready", "b ready"}
    in_flight.check(0.0)
    in_flight.check(1.0)
    device.passed |= {"a finished"}
    for now in (10.0, 9.9 + PARTING_TIMEOUT):
        in_flight.check(now)
    device.passed |= {"b finished"}
    in_flight.check(100.0)
    assert not in_flight.operations
