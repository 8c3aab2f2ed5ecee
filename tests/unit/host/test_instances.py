"""Finding the objects of a class while other threads make objects of their own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
from in_process.calls import DEADLINE, started

from distrun.host.instances import instances_of


class Thing:
    """A class whose objects are looked for."""


class Below(Thing):
    """A class whose objects are found with those of `Thing`."""


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_it_finds_the_objects_of_a_class_and_of_those_below_and_no_others():
    kept = [Thing(), Below(), object(), Thing, [Thing()]]
    assert set(map(id, instances_of(Thing))) == {id(kept[0]), id(kept[1]), id(kept[4][0])}
    assert [type(one) for one in instances_of(Below)] == [Below]
    assert instances_of(type("Never", (), {})) == []


def test_a_tuple_that_another_thread_is_making_is_left_alone(switching):
    kept, done = Thing(), threading.Event()

    def make():
        while not done.is_set():
            tuple(number for number in range(60))

    making = [started(make) for _ in range(2)]
    try:
        for _ in range(50):
            assert instances_of(Thing) == [kept]
    finally:
        done.set()
    for each in making:
        each.result(DEADLINE)  # raises the SystemError of a tuple that was touched
