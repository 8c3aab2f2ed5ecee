"""Subgroups of a host: what some ranks show each other does not meet what all do, and nothing of it is left."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from in_process.calls import DEADLINE, at_once

from distrun.errors import JobAbortedError
from distrun.runtime.operations.timeouts import FOREVER
from distrun.runtime.transport.local_group import LocalGroup
from distrun.runtime.transport.local_ranks import LocalRanks
from distrun.runtime.transport.local_subgroup import LocalSubgroup, LocalSubgroups
from distrun.runtime.transport.rendezvous.within_host import PeerInfo
from distrun.runtime.transport.shared_memory.doorbell import new_bell_fd
from distrun.runtime.transport.shared_memory.segment import FAILED, LEFT, STAGE, STATE, Layout, Segment, new_segment_fd

RANKS = (2, 3, 5, 8)  # of a host that is not the only one
SIZE = Layout(len(RANKS)).heap + (1 << 20)


@pytest.fixture
def host() -> Iterator[list[LocalGroup]]:
    """The local group as each rank of a host sees it; the ranks are threads, or one after the other."""
    me = os.getpid()
    peers = [PeerInfo(me, new_segment_fd(SIZE), new_bell_fd(), new_bell_fd(), os.pidfd_open(me)) for _ in RANKS]
    yield [LocalGroup(own, RANKS, peers, FOREVER) for own in range(len(RANKS))]
    for peer in peers:
        peer.close()


def both(first: Callable[[], object], second: Callable[[], object]) -> list[Any]:
    return at_once(lambda call: call(), (first, second))


def members(subgroups: list[LocalSubgroups], ranks: tuple[int, ...]) -> list[LocalRanks]:
    """Add a subgroup on all ranks; as its members see it."""
    made = [each.add(ranks) for each in subgroups]
    assert [group is not None for group in made] == [rank in ranks for rank in RANKS]
    return [group for group in made if group is not None]


def test_words_of_a_subgroup_reach_its_ranks_by_position(host):
    one, other = members([LocalSubgroups(each) for each in host], (3, 8))
    assert (one.own, one.size, one.ranks, one.others) == (0, 2, (3, 8), [1])
    shown = both(lambda: one.exchange([30, 31], "x"), lambda: other.exchange([80, 81], "x"))
    assert [[list(words) for words in lines] for lines in shown] == [[[30, 31], [80, 81]]] * 2
    assert one.describe([1]) == f"rank 8 (process {os.getpid()})"


@given(st.data())
def test_ranks_may_exchange_in_any_subgroups_in_an_order_that_all_keep(host, data):
    """Each rank goes through its part of one order as fast as it can; what is staged is read before it is replaced."""
    sets = data.draw(st.lists(st.sampled_from([(2, 3), (3, 5), (2, 5, 8), (3, 8), RANKS]), min_size=1, max_size=4))
    order = data.draw(st.lists(st.integers(0, len(sets) - 1), max_size=40))
    subgroups = [LocalSubgroups(each) for each in host]
    made = [[each.add(ranks) for each in subgroups] for ranks in sets]
    barrier = threading.Barrier(len(RANKS))

    def work(own: int) -> None:
        barrier.wait(DEADLINE)
        for number, chosen in enumerate(order):
            group = made[chosen][own]
            if group is None:
                continue
            stage = group.stage + group.parity * STAGE
            group.mine.view(stage, 100, np.dtype(np.int64))[:] = 1000 * number + RANKS[own]
            shown = [words[0] for words in group.exchange([number], "x")]
            assert shown == [number] * group.size
            for rank, segment in zip(group.ranks, group.segments, strict=True):
                assert (segment.view(stage, 100, np.dtype(np.int64)) == 1000 * number + rank).all()

    at_once(work, range(len(RANKS)))
    for ranks in sets:
        for each in subgroups:
            each.remove(ranks)
    assert [each.shared_bytes for each in host] == [0] * len(RANKS)


def test_the_set_of_all_ranks_of_the_host_is_the_local_group(host):
    assert LocalSubgroups(host[1]).add(RANKS) is host[1]
    LocalSubgroups(host[1]).remove(RANKS)


def test_sets_with_the_same_ranks_here_share_a_subgroup_until_the_last_is_removed(host):
    subgroups = LocalSubgroups(host[0])
    first = subgroups.add((2, 5))
    assert subgroups.add((2, 5)) is first
    area = Layout(len(RANKS)).area_size
    assert host[0].shared_bytes == area
    subgroups.remove((2, 5))
    assert host[0].shared_bytes == area
    subgroups.remove((2, 5))
    assert host[0].shared_bytes == 0


def test_all_ranks_of_the_host_give_a_subgroup_the_same_area_the_lowest_that_is_free(host):
    layout = host[0].mine.layout
    everybody = [LocalSubgroups(each) for each in host]

    def area(ranks: tuple[int, ...]) -> int:
        (stage,) = {group.stage for group in members(everybody, ranks)}
        return (stage - layout.area(0)) // layout.area_size

    assert [area((2, 3)), area((3, 5)), area((2, 8))] == [0, 1, 2]
    for each in everybody:
        each.remove((3, 5))
    assert [area((5, 8)), area((3, 8))] == [1, 3]


def test_an_area_is_zeros_again_for_whoever_has_it_next(host):
    subgroups = [LocalSubgroups(each) for each in host]
    one, other = members(subgroups, (2, 3))
    for _ in range(3):
        both(lambda: one.exchange([7], "x"), lambda: other.exchange([7], "x"))
    for each in subgroups:
        each.remove((2, 3))
    layout = host[0].mine.layout
    words = host[1].segments[0].view(layout.area(0), layout.area_words, np.dtype(np.uint8))
    assert not words.any()
    one, other = members(subgroups, (2, 3))
    shown = both(lambda: one.exchange([8], "x"), lambda: other.exchange([9], "x"))
    assert [[list(words) for words in lines] for lines in shown] == [[[8], [9]]] * 2


def test_freed_pages_are_given_back_to_the_system():
    fd = new_segment_fd(SIZE)
    segment = Segment(fd, SIZE, len(RANKS))
    start = segment.layout.area(5)
    before = os.fstat(fd).st_blocks
    segment.view(start, segment.layout.area_size, np.dtype(np.uint8))[:] = 7
    assert os.fstat(fd).st_blocks > before
    segment.free(start, segment.layout.area_size)
    assert os.fstat(fd).st_blocks == before
    os.close(fd)


def waiting(host: list[LocalGroup]) -> LocalSubgroup:
    """Rank 2's view of the subgroup of ranks 2 and 5; what it waits for does not come."""
    group = LocalSubgroups(host[0]).add((2, 5))
    assert isinstance(group, LocalSubgroup)
    return group


@pytest.mark.parametrize(
    ("rank", "fate", "sentence"),
    [
        (5, LEFT, r"^x, which .* waits for rank 5 .*: rank 5 .* has left: it has its reasons"),
        (8, FAILED, r"rank 8 .* failed: it has its reasons"),
        (8, None, r"rank 8 .* was killed by SIGKILL"),
    ],
    ids=["one of its ranks leaves", "any rank fails", "any rank dies"],
)
def test_a_wait_ends_when(host, monkeypatch, rank, fate, sentence):
    monkeypatch.setattr(
        "distrun.runtime.transport.shared_memory.peer_process.ending", lambda pidfd: "was killed by SIGKILL"
    )
    lose(host[0], rank, fate)
    with pytest.raises(JobAbortedError, match=sentence):
        waiting(host).exchange([], "x")


def test_the_leaving_of_another_rank_is_nothing_to_it(host):
    group = waiting(host)
    lose(host[0], 8, LEFT)
    lose(host[0], 8, None)
    assert not group.wait(lambda: False, lambda: "x", until=0.0)


def lose(group: LocalGroup, rank: int, fate: int | None) -> None:
    """Let a rank leave, fail or, if `fate` is None, end."""
    index = RANKS.index(rank)
    if fate is None:
        group.note_end(index)
    else:
        group.segments[index].reason = "it has its reasons"
        group.segments[index].words[STATE] = fate


def test_only_its_ranks_are_nudged(host):
    host[0].spare_cores = 0
    # Nobody rings when the nudge has been given, so the sleep is to be short enough to look again.
    until = host[0]._clock() + DEADLINE
    group = waiting(host)
    while not host[2].is_nudged and host[0]._clock() < until:
        group.wait(lambda: host[2].is_nudged, lambda: "x", until=host[0]._clock() + 0.1)
    assert [each.is_nudged for each in host] == [False, False, True, False]
