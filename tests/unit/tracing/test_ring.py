"""Rings of events: what is written is read, in order, and a slow reader goes on with what is left."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st
from in_process.calls import started
from session.hypothesis_profiles import examples

from distrun.tracing import layout
from distrun.tracing.layout import BACKWARD, DONE, FORWARD, GENERATION, INPUT, SLOTS, STEP, WAITED, WAITING
from distrun.tracing.reader import RingReader, events, split_names
from distrun.tracing.ring import Ring


def made(label="allreduce 'loss'", cache_id=-1, nbytes=400, process_set=0):
    """Return an operation."""
    request = SimpleNamespace(process_set=process_set, nbytes=nbytes)
    return SimpleNamespace(request=request, label=label, cache_id=cache_id, submitted=5)


@pytest.fixture
def descriptor():
    fd = layout.new_ring_fd()
    yield fd
    os.close(fd)


@pytest.fixture
def ring(descriptor):
    return Ring(descriptor)


@pytest.fixture
def reader(descriptor):
    return RingReader(descriptor)


def read(reader):
    return list(events(reader.read()))


def test_what_is_written_is_read_once(ring, reader):
    ring.enter(INPUT)
    ring.enter(FORWARD, 32)
    assert [(event.kind, event.value) for event in read(reader)] == [(INPUT, 0), (FORWARD, 32)]
    assert read(reader) == []
    ring.step_done()
    assert [(event.kind, event.number) for event in read(reader)] == [(STEP, 1)]


def test_operations_have_names_bytes_and_a_count(ring, reader):
    ring.done([made(cache_id=3)], 7)
    ring.done([made(cache_id=3), made(cache_id=4)], 8)
    ring.done([made("barrier 'end'", process_set=2)], 9)
    names = reader.names()
    found = [event for event in read(reader) if event.kind == DONE]
    assert [names[event.name] for event in found] == ["allreduce 'loss'", "allreduce 'loss'", "barrier 'end'"]
    assert [event.value for event in found] == [400, 800, 400]
    assert [event.number for event in found] == [1, 2, 1]
    assert [event.fused for event in found] == [1, 2, 1]
    assert [event.process_set for event in found] == [0, 0, 2]
    assert [event.submitted for event in found] == [5, 5, 5]
    assert all(event.begin < event.end for event in found)


def test_a_new_world_counts_anew(ring, reader):
    ring.step_done()
    ring.done([made(cache_id=3)], 7)
    ring.begin_generation(2)
    ring.done([made("allreduce 'other'", cache_id=3, nbytes=8)], 7)
    found = read(reader)
    assert [(event.kind, event.number) for event in found] == [(STEP, 1), (DONE, 1), (GENERATION, 2), (DONE, 1)]
    assert reader.names()[found[-1].name] == "allreduce 'other'"
    assert found[-1].value == 8


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (1, [(GENERATION, 3), (STEP, 4)]),
        (3, [(GENERATION, 2), (STEP, 3), (GENERATION, 3), (STEP, 4)]),
        (5, [(GENERATION, 1), (GENERATION, 2), (STEP, 2), (STEP, 3), (GENERATION, 3), (STEP, 4)]),
        (100, [(GENERATION, 1), (STEP, 1), (GENERATION, 2), (STEP, 2), (STEP, 3), (GENERATION, 3), (STEP, 4)]),
    ],
)
def test_a_reader_that_comes_late_is_told_the_world_in_which_what_it_reads_begins(ring, reader, most, expected):
    ring.step_done()
    for world in (2, 3):
        ring.begin_generation(world)
        ring.step_done()
        if world == 2:
            ring.step_done()
    reader.restart(most)
    assert [(event.kind, event.number) for event in read(reader)] == expected
    ring.step_done()
    assert [(event.kind, event.number) for event in read(reader)] == [(STEP, 5)]


def test_steps_that_nobody_tells_of_are_counted_by_what_comes_again(ring, reader):
    for label in ("broadcast", "gradient.0", "gradient.1", "gradient.0", "gradient.1", "gradient.0", "gradient.1"):
        ring.done([made(label)], 7)
    assert [event.number for event in read(reader) if event.kind == STEP] == [1, 2]


def test_steps_that_are_told_are_not_counted_twice(ring, reader):
    for _ in range(4):
        ring.done([made()], 7)
        ring.step_done()
    assert [event.number for event in read(reader) if event.kind == STEP] == [1, 2, 3, 4]


def test_waiting_is_told_when_it_begins_and_when_it_is_over(ring, reader):
    began = ring.waiting("allreduce 'loss'")
    assert [(event.kind, event.begin) for event in read(reader)] == [(WAITING, began)]
    ring.waited(began)
    (over,) = read(reader)
    assert (over.kind, over.begin) == (WAITED, began)
    assert over.end > began


@examples(gate=5, full=100)
@given(st.lists(st.integers(1, SLOTS // 3), min_size=1, max_size=8), st.integers(0, 7))
def test_a_reader_that_keeps_up_misses_nothing_across_the_end(batches, together):
    ring = Ring()
    reader = RingReader(ring.memory)
    seen = []
    written = 0
    for index, batch in enumerate(batches):
        for _ in range(batch):
            ring.enter(BACKWARD, written)
            written += 1
        if index % 2 == together % 2:
            seen += [event.value for event in read(reader)]
    seen += [event.value for event in read(reader)]
    assert seen == list(range(written))


def test_a_reader_that_is_too_slow_goes_on_with_what_is_left(ring, reader):
    written = SLOTS + 5000
    for value in range(written):
        ring.enter(BACKWARD, value)
    seen = [event.value for event in read(reader)]
    assert seen == list(range(written - len(seen), written))
    assert len(seen) >= SLOTS - 2048


def test_the_last_events_are_there_whatever_was_read(ring, reader):
    for value in range(3 * SLOTS):
        ring.enter(BACKWARD, value)
    assert [event.value for event in events(reader.last(10))] == list(range(3 * SLOTS - 10, 3 * SLOTS))


def test_a_second_process_goes_on_where_the_first_has_ended(descriptor, reader):
    Ring(descriptor).done([made()], 7)
    second = Ring(descriptor)
    second.done([made("allreduce 'late'")], 7)
    second.done([made()], 7)
    names = reader.names()
    labels = [names[event.name] for event in read(reader) if event.kind == DONE]
    assert labels == ["allreduce 'loss'", "allreduce 'late'", "allreduce 'loss'"]


def test_names_beyond_the_room_for_them_are_left_out(ring, reader):
    for number in range(layout.NAMES // 100):
        ring.done([made(f"{number:0150}")], 7)
    names = reader.names()
    found = [names[event.name] for event in read(reader) if event.kind == DONE]
    assert found[0] == f"{0:0150}"
    assert found[-1] == ""
    assert split_names(reader.new_names()) == names[1:]


def test_threads_write_side_by_side(ring, reader):
    each = 3000

    def write(first):
        for value in range(first, first + each):
            ring.enter(BACKWARD, value)

    writing = [started(write, index * each) for index in range(4)]
    seen = []
    while not all(each.done() for each in writing):
        seen += [event.value for event in read(reader)]
    seen += [event.value for event in read(reader)]
    assert sorted(seen) == list(range(4 * each))


def test_only_a_ring_is_taken_for_one(tmp_path):
    with open(tmp_path / "file", "w+b") as file:
        assert not layout.is_ring(file.fileno())
        file.truncate(layout.SIZE)
        assert not layout.is_ring(file.fileno())
    assert not layout.is_ring(9999)
