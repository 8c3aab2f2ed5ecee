"""Events become Horovod's pairs of begin and end, and what the ring does not know is left out."""

import json

import pytest

from distrun.tracing import layout
from distrun.tracing.horovod_timeline.entries import HorovodEntries
from distrun.tracing.reader import Event

US = 1000
BEGIN = 7_000_000_000_000
NAMES = [
    "",
    "allreduce 'loss'",
    "unnamed allreduce",
    "join",
    "broadcast 'w'",
    "allgather 'g'",
    "alltoall 'a'",
    "reducescatter 'r'",
    "barrier 'b'",
    'allreduce "it\'s\\n"',
    "allreduce 'cut",
]


def done(name, begin, end, submitted=0, process_set=0, count=1):
    """Return the event of an operation; times in microseconds of the trace, 0 for one that is not known."""
    at = [time and BEGIN + time * US for time in (begin, end, submitted)]
    return Event(*at, 4, layout.DONE, name, 1, process_set, count)


def cycle(at):
    return Event(BEGIN + at * US, 0, 0, 0, layout.CYCLE, 0, 0, 0, 3)


def entries(events, library="GLOO", mark_cycles=False):
    return [json.loads(line) for line in HorovodEntries(BEGIN, library, mark_cycles).of(events, NAMES)]


def slices(found):
    """Return process, name, begin, end and depth of all slices; they nest, and each process has its name first."""
    names, stacks, whole = {}, {}, []
    for entry in found:
        if entry["ph"] == "M":
            if entry["name"] == "process_name":
                names[entry["pid"]] = entry["args"]["name"]
            else:
                assert entry["args"] == {"sort_index": entry["pid"]}
        elif entry["ph"] == "B":
            stacks.setdefault(entry["pid"], []).append((entry["name"], entry["ts"]))
        elif entry["ph"] == "E":
            stack = stacks[entry["pid"]]
            name, begin = stack.pop()
            assert begin <= entry["ts"]
            whole.append((names[entry["pid"]], name, begin, entry["ts"], len(stack)))
    assert not any(stacks.values())
    return whole


def test_an_operation_is_negotiated_and_then_done_by_a_library():
    found = entries([done(1, 480, 520, 120)])
    assert found == [
        {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "allreduce.loss"}},
        {"name": "process_sort_index", "ph": "M", "pid": 1, "args": {"sort_index": 1}},
        {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 120, "pid": 1},
        {"ph": "E", "ts": 480, "pid": 1},
        {"ph": "B", "name": "ALLREDUCE", "ts": 480, "pid": 1, "args": {"bytes": 4}},
        {"ph": "B", "name": "GLOO_ALLREDUCE", "ts": 480, "pid": 1},
        {"ph": "E", "ts": 520, "pid": 1},
        {"ph": "E", "ts": 520, "pid": 1},
    ]


@pytest.mark.parametrize(
    ("name", "process", "operation", "activity"),
    [
        (1, "allreduce.loss", "ALLREDUCE", "MPI_ALLREDUCE"),
        (4, "broadcast.w", "BROADCAST", "MPI_BCAST"),
        (5, "allgather.g", "ALLGATHER", "MPI_ALLGATHER"),
        (6, "alltoall.a", "ALLTOALL", "MPI_ALLTOALL"),
        (7, "reducescatter.r", "REDUCESCATTER", "MPI_REDUCESCATTER"),
        (8, "barrier.b", "BARRIER", None),
        (9, "allreduce.it's\n", "ALLREDUCE", "MPI_ALLREDUCE"),
        (10, "allreduce.cut", "ALLREDUCE", "MPI_ALLREDUCE"),
    ],
)
def test_each_kind_has_horovods_names(name, process, operation, activity):
    whole = [(process, activity, 20, 30, 1)] if activity else []
    expected = [(process, f"NEGOTIATE_{operation}", 10, 20, 0), *whole, (process, operation, 20, 30, 0)]
    assert slices(entries([done(name, 20, 30, 10)], "MPI")) == expected


def test_a_tensor_is_one_process_in_each_process_set_and_its_slices_never_overlap():
    events = [done(1, 20, 30, 10), done(1, 50, 60, 29), done(1, 70, 80, 65, process_set=2)]
    found = entries(events)
    assert [entry["pid"] for entry in found if entry.get("name") == "process_name"] == [1, 2]
    negotiated = [piece[2:4] for piece in slices(found) if piece[1].startswith("NEGOTIATE")]
    assert negotiated == [(10, 20), (30, 50), (65, 70)]


def test_unnamed_operations_are_processes_of_their_own():
    names = {process for process, *_ in slices(entries([done(2, 20, 30, 5), done(1, 30, 40), done(2, 40, 50, 6)]))}
    assert names == {"allreduce.noname.1", "allreduce.loss", "allreduce.noname.3"}


def test_tensors_that_travel_together_are_counted():
    (operation,) = [entry for entry in entries([done(1, 20, 30, 10, count=5)]) if entry.get("name") == "ALLREDUCE"]
    assert operation["args"] == {"bytes": 4, "tensors": 5}


@pytest.mark.parametrize(
    ("event", "left"),
    [
        (done(3, 20, 30, 10), []),
        (done(0, 20, 30, 10), []),
        (done(99, 20, 30, 10), []),
        (done(1, -5, 30, -10), []),
        (done(1, 20, 30, -10), ["GLOO_ALLREDUCE", "ALLREDUCE"]),
        (done(1, 20, 30), ["GLOO_ALLREDUCE", "ALLREDUCE"]),
        (Event(BEGIN + 5, BEGIN + 9, 0, 0, layout.WAITED, 1, 0, 0, 0), []),
    ],
    ids=["join", "without a name", "of a name not read", "begun before", "submitted before", "unsubmitted", "a wait"],
)
def test_what_horovod_does_not_show_or_nobody_knows_is_left_out(event, left):
    assert [name for _, name, *_ in slices(entries([event, event]))] == left * 2


def test_a_gpu_has_no_activities():
    whole = slices(entries([done(1, 20, 30, 10)], library=""))
    assert [name for _, name, *_ in whole] == ["NEGOTIATE_ALLREDUCE", "ALLREDUCE"]


def test_cycles_are_marked_on_request():
    assert entries([cycle(9)], mark_cycles=True) == [{"ph": "i", "name": "CYCLE_START", "ts": 9, "s": "g"}]
    assert entries([cycle(9)]) == entries([cycle(-9)], mark_cycles=True) == []
