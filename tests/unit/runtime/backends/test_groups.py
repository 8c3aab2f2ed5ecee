"""Groups: which backend a process set has on which rank, and when it is made, closed and released."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from distrun.errors import BootstrapError, JobAbortedError, UsageError
from distrun.runtime.backends import dispatch
from distrun.runtime.backends.groups import GroupFactory, Groups
from distrun.runtime.backends.single_process import SingleProcessBackend
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.reduction import Sum
from distrun.runtime.operations.request import Request
from distrun.runtime.transport.shared_memory.segment import AREAS


class FakeBackend(SingleProcessBackend):
    """A backend that notes what it is asked for."""

    def __init__(self, log: list[Any], rank: int, size: int) -> None:
        self.log, self.rank, self.size = log, rank, size

    def barrier(self, what: str) -> None:
        self.log.append(f"barrier of {self.size}: {what}")

    def broadcast(self, array: Any, root: int, what: str) -> None:
        self.log.append(f"broadcast from {root} of {self.size}")

    def close(self) -> None:
        self.log.append(f"close {self.size}")


class Factory(GroupFactory):
    """Makes rank 1's backends."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log
        self.error: Exception | None = None

    def make(self, ranks, what):
        self.log.append(f"make {ranks}")
        if self.error is not None:
            raise self.error
        return FakeBackend(self.log, ranks.index(1), len(ranks)) if 1 in ranks else None

    def release(self, ranks):
        self.log.append(f"release {ranks}")


@pytest.fixture
def log() -> list[Any]:
    return []


@pytest.fixture
def factory(log: list[Any]) -> Factory:
    return Factory(log)


@pytest.fixture
def groups(log: list[Any], factory: Factory) -> Groups:
    """The groups of rank 1 of four."""
    return Groups(FakeBackend(log, 1, 4), factory)


def test_a_set_has_a_backend_where_its_ranks_are_and_its_ranks_are_known_everywhere(groups, log):
    groups.add(1, (1, 3), "add")
    groups.add(2, (0, 2, 3), "add")
    assert log == ["make (1, 3)", "make (0, 2, 3)"]
    assert sorted(groups.backends) == [0, 1]
    assert (groups.backends[1].rank, groups.backends[1].size) == (0, 2)
    assert groups.ranks == {0: (0, 1, 2, 3), 1: (1, 3), 2: (0, 2, 3)}


def test_a_set_of_one_rank_needs_nobody(groups, log):
    groups.add(1, (1,), "add")
    groups.add(2, (2,), "add")
    assert log == []
    assert {number: type(backend).__name__ for number, backend in groups.backends.items()} == {
        0: "FakeBackend", 1: "SingleProcessBackend",
    }  # fmt: skip
    groups.remove(1, "remove")
    groups.remove(2, "remove")
    assert list(groups.ranks) == [0]
    assert not any("release" in line for line in log)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ((1, 3), ["before the removal of 4", "barrier of 4: remove", "close 2", "release (1, 3)"]),
        ((0, 3), ["barrier of 4: remove", "release (0, 3)"]),
    ],
    ids=["of this rank", "of others"],
)
def test_a_set_is_released_when_all_ranks_have_finished_with_it(groups, log, ranks, expected):
    groups.add(4, ranks, "add")
    groups.before_removal.append(lambda number: log.append(f"before the removal of {number}"))
    log.clear()
    groups.remove(4, "remove")
    assert log == expected
    assert (list(groups.backends), list(groups.ranks)) == ([0], [0])


def test_ranks_that_cannot_be_connected_end_the_job(groups, factory):
    factory.error = BootstrapError("rank 1 cannot reach rank 3")
    with pytest.raises(JobAbortedError, match=r"^process set \[1, 3\] cannot be added: rank 1 cannot reach rank 3$"):
        groups.add(1, (1, 3), "add")
    assert list(groups.ranks) == [0]


def test_there_is_an_end_to_the_number_of_sets(groups):
    for number in range(1, AREAS + 1):
        groups.add(number, (2,), "add")
    with pytest.raises(UsageError, match=rf"^process set \[0, 1\] cannot be added: there are {AREAS} already"):
        groups.add(AREAS + 1, (0, 1), "add")
    groups.remove(7, "remove")
    groups.add(AREAS + 1, (0, 1), "add")


def test_all_backends_are_closed_and_that_of_the_world_last(groups, log):
    groups.add(1, (1, 3), "add")
    groups.add(2, (0, 1, 3), "add")
    log.clear()
    groups.close()
    assert log == ["close 3", "close 2", "close 4"]


def test_an_operation_goes_to_the_backend_of_its_set_and_a_root_is_a_position_there(groups, log):
    groups.add(3, (1, 3), "add")
    log.clear()
    array = np.ones(2)
    for number in (0, 3):
        request = Request("broadcast", "x", "float64", ((2,),), Sum, root=3, process_set=number)
        dispatch.execute(groups, [Handle(None, request, [array], [array])])
    assert log == ["broadcast from 3 of 4", "broadcast from 1 of 2"]
