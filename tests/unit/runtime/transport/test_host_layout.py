"""The layout of hosts: ranks that share a host, and ranks that communicate between hosts."""

import pytest

from distrun.runtime.transport.host_layout import HostLayout


def test_hosts_are_numbered_by_their_lowest_ranks():
    hosts = HostLayout.of(["b", "a", "b", "c"], 2)
    assert (hosts.ranks, hosts.count, hosts.own, hosts.local_ranks) == (((0, 2), (1,), (3,)), 3, 0, (0, 2))
    assert hosts.position == 1


def test_there_are_as_many_rails_as_the_smallest_host_has_ranks():
    names = ["a", "a", "a", "b", "b"]
    assert [HostLayout.of(names, rank).has_rail for rank in range(5)] == [True, True, False, True, True]
    assert HostLayout.of(names, 0).rails == 2
    assert HostLayout.of(names, 0).most == 3
    assert [HostLayout.of(names, 1).peer(host) for host in range(2)] == [1, 4]
    assert [HostLayout.of(names, 3).peer(host) for host in range(2)] == [0, 3]


def test_everybody_turns_to_the_next_host_first():
    names = ["a", "b", "c", "d"]
    assert [HostLayout.of(names, rank).others for rank in range(4)] == [(1, 2, 3), (2, 3, 0), (3, 0, 1), (0, 1, 2)]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("aabb", [(0, 2), (0, 2), (1, 2), (1, 2)]),
        ("abab", [(0, 2), (1, 2), (0, 2), (1, 2)]),
        ("abb", [(0, 2), (1, 2), (0, 1)]),
        ("abbcc", [(0, 3), (1, 3), (0, 2), (2, 3), (1, 2)]),
    ],
)
def test_cross_rank_counts_the_hosts_that_have_a_rank_at_our_position(names, expected):
    assert [HostLayout.of(list(names), rank).cross() for rank in range(len(names))] == expected


def test_the_layout_of_a_set_counts_its_ranks_by_their_positions():
    job = HostLayout.of(["a", "b", "a", "b", "c", "a"], 3)
    hosts = job.of_set((1, 2, 3, 5))
    assert hosts.ranks == ((0, 2), (1, 3))  # host b comes first now: position 0 is rank 1
    assert (hosts.rank, hosts.own, hosts.position) == (2, 0, 1)
    assert hosts.peers == {1: 3}


def test_a_rank_without_a_rail_has_no_peers():
    names = ["a", "a", "b"]
    assert [HostLayout.of(names, rank).peers for rank in range(3)] == [{1: 2}, {}, {0: 0}]


def test_a_set_may_be_on_one_host():
    hosts = HostLayout.of(["a", "b", "b"], 2).of_set((1, 2))
    assert (hosts.count, hosts.ranks, hosts.position) == (1, ((0, 1),), 1)
    assert hosts.peers == {}
