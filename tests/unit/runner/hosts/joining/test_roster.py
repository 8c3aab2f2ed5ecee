"""The roster says who may join, who is refused with which sentence, who is missing, and when the job begins."""

from dataclasses import replace

import pytest

from distrun import __version__
from distrun.runner.hosts.joining.messages import Member
from distrun.runner.hosts.joining.roster import Roster
from distrun.runner.hosts.nodes.messages import with_unique_names
from distrun.runner.protocol.handshake import HostInfo

OWN = Member(0, 3, "a", 1, "/")
OTHER = Member(1, 3, "b", 2, "/")


def node(name, index=None, hosts=3, least=0):
    """A host with a launcher of its own."""
    return Member(index, hosts, name, 1, "/", least=least, info=HostInfo(__version__, "3.11", 1))


def after(*arrivals, last_call=30.0):
    """A roster with a history: (time, host), or (time, index of one that leaves). The first is the launcher's own."""
    (begin, own), *others = arrivals
    roster = Roster(own, last_call=last_call, now=begin)
    for now, item in others:
        if isinstance(item, int):
            roster.leave(item)
        else:
            assert roster.refusal(item) == roster.occupant(item) == ""
            roster.join(item, now)
    return roster


def test_the_launchers_host_is_there_and_the_others_are_missed_until_they_join():
    assert after((0.0, OWN)).describe() == "1 of 3 hosts has joined (0 a), not 1 and 2"
    roster = after((0.0, OWN), (1.0, OTHER))
    assert roster.ranks == 3
    assert roster.describe() == "2 of 3 hosts have joined (0 a, 1 b), not 2"
    roster.leave(1)
    assert roster.describe().endswith("not 1 and 2")


def test_many_missing_hosts_are_not_all_listed():
    assert Roster(replace(OWN, hosts=100)).describe().endswith("not 1, 2, 3, 4, 5, 6, 7, 8, 9 and 90 more")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hosts": 2}, "host 1 (b) was told that there are 2 hosts, and host 0 that there are 3"),
        ({"index": 3}, "b calls as host 3, which does not exist: allowed are 1 to 2"),
        ({"index": 0}, "b calls as host 0, which is the launcher's own: allowed are 1 to 2"),
        ({"ranks": 0}, "b takes 0 ranks: allowed are 1 and more"),
        ({"distrun": "0.0.1"}, "b cannot be used: distrun 0.0.1 is installed there and "),
    ],
)
def test_a_host_that_does_not_fit_is_refused_with_what_is_allowed(changes, reason):
    assert Roster(OWN).refusal(replace(OTHER, **changes)).startswith(reason)
    assert Roster(OWN).refusal(OTHER) == ""


def test_a_second_one_with_an_index_waits_until_the_first_has_gone():
    roster = after((0.0, OWN), (0.0, OTHER))
    second = replace(OTHER, name="b-again")
    assert roster.occupant(second) == "host 1 has joined already (b), and b-again calls as the same"
    roster.leave(1)
    assert roster.occupant(second) == ""


@pytest.mark.parametrize(("is_elastic", "reason"), [(True, ""), (False, "the job has begun without b, and it is not")])
def test_only_an_elastic_job_takes_hosts_once_it_has_begun(is_elastic, reason):
    roster = Roster(OWN, is_elastic)
    roster.has_begun = True
    assert roster.refusal(OTHER).startswith(reason)
    assert bool(roster.refusal(OTHER)) == bool(reason)


# --- when the job begins


def test_a_job_begins_when_its_last_host_has_joined():
    two = replace(OWN, hosts=2)
    assert after((0.0, two)).begins_at == float("inf")
    assert after((0.0, two), (5.0, replace(OTHER, hosts=2))).begins_at == 5.0


def test_a_host_that_leaves_before_the_job_begins_is_waited_for_again():
    roster = after((0.0, node("a", hosts=2)), (1.0, node("b", hosts=2)), (2.0, 3))
    assert roster.begins_at == float("inf")
    assert roster.describe() == "1 of 2 hosts has joined (a)"


def test_more_than_the_least_number_of_hosts_may_join_for_a_while():
    a, b, c, d = (node(name, hosts=4, least=2) for name in "abcd")
    assert after((0.0, a), (10.0, b)).begins_at == 40.0
    assert after((0.0, a), (10.0, b), (11.0, c), (12.0, d)).begins_at <= 12.0
    assert after((0.0, a), (10.0, b), last_call=0.5).begins_at == 10.5


def test_the_last_call_begins_again_when_a_needed_host_leaves():
    a, b, c = (node(name, hosts=4, least=2) for name in "abc")
    assert after((0.0, a), (10.0, b), (20.0, 5), (25.0, c)).begins_at == 55.0


# --- hosts with a launcher of their own


@pytest.mark.parametrize(
    ("indices", "order"),
    [([None, None, None], ["a", "b", "c"]), ([2, 0, 1], ["b", "c", "a"]), ([None, None, 0], ["c", "a", "b"])],
)
def test_ranks_follow_the_indices_asked_for_and_else_the_order_of_arrival(indices, order):
    nodes = [(0.0, node(name, index)) for name, index in zip("abc", indices, strict=True)]
    assert [item.name for item in after(*nodes).listed()] == order


def test_nodes_of_one_machine_have_names_of_their_own():
    members = after((0.0, node("box", hosts=2)), (0.0, node("box", hosts=2))).listed()
    assert [item.name for item in with_unique_names(members)] == ["box", "box (node 1)"]


def test_a_node_too_many_is_refused_with_the_names_of_those_that_have_joined():
    roster = after((0.0, node("a", hosts=2)), (0.0, node("b", hosts=2)))
    assert roster.refusal(node("c", hosts=2)) == "2 of 2 hosts have joined (a, b): c is one too many"


def test_nodes_that_ask_for_different_numbers_are_refused_with_both():
    refusal = after((0.0, node("a"))).refusal(node("b", hosts=4, least=2))
    sentence = "b was told that there are 2:4 hosts, and a that there are 3"
    assert refusal == f"{sentence}: give all the same number (--nnodes)"


def test_an_index_that_two_nodes_ask_for_is_named_with_both():
    roster = after((0.0, node("a", 0)))
    assert roster.refusal(node("b", 0)) == ""
    assert roster.occupant(node("b", 0)) == "host 0 has joined already (a), and b calls as the same"
