"""Every host gets the ranks that the user's words give it."""

import pytest

from distrun.errors import UsageError
from distrun.runner.planning.hosts import Host, parse_host_list
from distrun.runner.planning.placement import host_of_each_rank, parse_ranks, place, with_slots


@pytest.mark.parametrize(
    ("hosts", "np", "counts"),
    [
        ([Host("a", 4)], None, [4]),
        ([Host("a", 4)], 2, [2]),
        ([Host("a", 2), Host("b", 2)], 3, [2, 1]),
        ([Host("a", 2), Host("b", 2)], 2, [2]),
        ([Host("a")], None, [2]),
        ([Host("a")], 32, [32]),
        ([Host("a"), Host("b", 1), Host("c")], 9, [4, 1, 4]),
    ],
)
def test_hosts_are_filled_in_order_and_np_caps_the_ranks(hosts, np, counts):
    assert [count for _, count in place(hosts, np, 2)] == counts


@pytest.mark.parametrize(
    ("hosts", "np", "options", "value"),
    [
        ([Host("a")], 8193, {}, "-np 8193 asks for 8193 ranks on one host, which takes at most 8192"),
        ([Host(str(host), 8192) for host in range(129)], None, {"by_node": True}, "have 1056768 slots"),
    ],
)
def test_more_ranks_than_there_can_be_are_refused_before_anything_is_made_of_them(hosts, np, options, value):
    with pytest.raises(UsageError, match=value):
        place(hosts, np, 1, **options)


@pytest.mark.parametrize(("text", "ranks"), [("0", {0}), ("0,2-3", {0, 2, 3}), ("1-1, 0", {0, 1})])
def test_a_rank_filter_is_a_list_of_ranks_and_ranges(text, ranks):
    assert parse_ranks(text, 4) == ranks


@pytest.mark.parametrize("text", ["", "4", "2-1", "a", "0,,1", "-1", "0-9", "²"])
def test_a_rank_filter_outside_the_job_is_refused(text):
    with pytest.raises(UsageError, match="allowed are ranks 0 to 3"):
        parse_ranks(text, 4)


@pytest.mark.parametrize(
    ("hosts", "np", "counts"),
    [
        ([Host("a", 2), Host("b", 2)], 2, [1, 1]),
        ([Host("a", 3), Host("b", 1)], 3, [2, 1]),
        ([Host("a", 1), Host("b", 4), Host("c", 2)], None, [1, 4, 2]),
    ],
)
def test_by_node_each_host_gets_a_rank_in_turn(hosts, np, counts):
    assert [ranks for _, ranks in place(hosts, np, 1, by_node=True)] == counts


def test_a_host_without_a_number_has_a_slot_each_time_it_is_listed():
    hosts = parse_host_list("a,b,a")
    assert [count for _, count in place(hosts, None, 1)] == [2, 1]
    assert [count for _, count in place(with_slots(hosts, 3, None), None, 1)] == [6, 3]
    assert [count for _, count in place(hosts, 5, 1)] == [3, 2]  # -np gives them more, in turn
    assert [count for _, count in place(parse_host_list("a,a:2"), None, 1)] == [3]
    assert ",".join(map(str, hosts)) == "a,a,b"


def test_hosts_take_turns_until_their_slots_are_full():
    assert list(host_of_each_rank([1, 3, 2], by_node=True)) == [0, 1, 2, 1, 2, 1]
    assert list(host_of_each_rank([1, 3, 2])) == [0, 1, 1, 1, 2, 2]


def test_oversubscribed_hosts_share_what_is_too_many():
    hosts = [Host("a", 2), Host("b", 1)]
    with pytest.raises(UsageError, match=r"-np 6 .* 3 slots .* --oversubscribe"):
        place(hosts, 6, 1)
    assert [ranks for _, ranks in place(hosts, 6, 1, oversubscribe=True)] == [4, 2]
    assert [ranks for _, ranks in place(hosts, 2, 1, oversubscribe=True)] == [2]


def test_ranks_per_host_is_the_slots_of_every_host():
    hosts = [Host("a", 8), Host("b")]
    assert with_slots(hosts, None, 2) == [Host("a", 2), Host("b", 2)]
    assert with_slots([], None, 2) == [Host("localhost", 2)]
    assert with_slots(hosts, 4, None) == [Host("a", 8), Host("b", 4)]
    with pytest.raises(UsageError, match="--ranks-per-host 9 is more than the 8 slots of a"):
        with_slots(hosts, None, 9)
    assert with_slots(hosts, None, 9, oversubscribe=True) == [Host("a", 9), Host("b", 9)]
