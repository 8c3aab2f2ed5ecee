"""The roster decides who may come and when the job begins: histories of arrivals, with a clock that is handed in."""

from __future__ import annotations

import platform

import pytest

from distrun import __version__
from distrun.runner.hosts.nodes.messages import Node
from distrun.runner.hosts.nodes.roster import Roster, Size
from distrun.runner.protocol.handshake import HostInfo

INFO = HostInfo(__version__, platform.python_version(), 1)


def node(name, nodes="2", number=None, info=INFO):
    return Node(name, 1, nodes, number, info)


def after(size, *arrivals):
    """A roster that a history has gone through: (time, node), or (time, number of one that leaves)."""
    roster = Roster(size)
    for number, (now, item) in enumerate(arrivals):
        if isinstance(item, int):
            roster.leave(item)
        else:
            assert roster.arrive(number, item, now) == ""
    return roster


def test_a_job_begins_when_its_last_node_has_come():
    assert not after(Size(2, 2), (0.0, node("a"))).is_complete(1e9)
    assert after(Size(2, 2), (0.0, node("a")), (5.0, node("b"))).is_complete(5.0)


def test_a_node_that_leaves_before_the_job_begins_is_waited_for_again():
    roster = after(Size(2, 2), (0.0, node("a")), (1.0, node("b")), (2.0, 1))
    assert not roster.is_complete(1e9)
    assert roster.describe() == "1 of 2 nodes has come (a)"


def test_more_than_the_least_number_of_nodes_may_come_for_a_while():
    size = Size(2, 4, last_call=30.0)
    two = [(0.0, node("a", "2:4")), (10.0, node("b", "2:4"))]
    assert (after(size, *two).is_complete(39.9), after(size, *two).is_complete(40.0)) == (False, True)
    four = [*two, (11.0, node("c", "2:4")), (12.0, node("d", "2:4"))]
    assert after(size, *four).is_complete(12.0)


def test_the_last_call_begins_anew_when_a_needed_node_leaves():
    arrivals = [(0.0, node("a", "2:4")), (10.0, node("b", "2:4")), (20.0, 1), (25.0, node("c", "2:4"))]
    assert after(Size(2, 4, 30.0), *arrivals).begins_at == 55.0


@pytest.mark.parametrize(
    ("numbers", "order"),
    [([None, None, None], ["a", "b", "c"]), ([2, 0, 1], ["b", "c", "a"]), ([None, None, 0], ["c", "a", "b"])],
)
def test_ranks_follow_the_places_asked_for_and_else_the_order_of_arrival(numbers, order):
    nodes = [(0.0, node(name, "3", number)) for name, number in zip("abc", numbers, strict=True)]
    assert [item.name for item in after(Size(3, 3), *nodes).nodes()] == order


def test_nodes_of_one_machine_have_names_of_their_own():
    names = [item.name for item in after(Size(2, 2), (0.0, node("box")), (0.0, node("box"))).nodes()]
    assert names == ["box", "box (node 1)"]


@pytest.mark.parametrize(
    ("arrival", "words"),
    [
        (node("c"), "2 of 2 nodes have come (a, b): c is one too many"),
        (node("c", info=HostInfo("0.0.1", "3.11.2", 1)), "c cannot be used: distrun 0.0.1 is installed there"),
    ],
)
def test_a_node_that_does_not_fit_is_told_why(arrival, words):
    roster = after(Size(2, 2), (0.0, node("a")), (0.0, node("b")))
    assert words in roster.arrive(7, arrival, 1.0)


def test_nodes_that_ask_for_different_jobs_are_told_both_numbers():
    refusal = after(Size(3, 3), (0.0, node("a", "3"))).arrive(1, node("b", "2"), 0.0)
    assert refusal == "--nnodes is 2 on b and 3 on the others: give it the same everywhere"


def test_a_place_that_two_nodes_ask_for_is_refused_with_both_names():
    refusal = after(Size(2, 2), (0.0, node("a", number=0))).arrive(1, node("b", number=0), 0.0)
    assert refusal == "--node-rank 0 was given on a and on b: give each node its own, 0 to 1, or none"
