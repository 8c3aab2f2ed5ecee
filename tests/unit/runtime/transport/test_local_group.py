"""Waiting for local peers by histories of events: real shared memory, and a clock and a sleep that are the test's."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator

import pytest

from distrun.errors import JobAbortedError, StallError
from distrun.runtime.operations import waking_clock
from distrun.runtime.operations.timeouts import FOREVER, NUDGE_AFTER, Timeouts
from distrun.runtime.transport import local_ranks
from distrun.runtime.transport.local_group import LocalGroup
from distrun.runtime.transport.local_ranks import FEW_RANKS
from distrun.runtime.transport.network import REASON_TIMEOUT
from distrun.runtime.transport.rendezvous.within_host import PeerInfo
from distrun.runtime.transport.shared_memory.doorbell import SEES_STORES_IN_ORDER, new_bell_fd
from distrun.runtime.transport.shared_memory.segment import (
    EPOCH,
    FAILED,
    LEFT,
    RUNNING,
    SLEEPING,
    STATE,
    WANTED,
    Layout,
    new_segment_fd,
)

ROOM = Layout(3).heap + (1 << 26)


class Group(LocalGroup):
    """Rank `own` of a host; when it would sleep, the next event of its history happens, or the time passes."""

    def __init__(self, own: int, ranks: range, peers: list[PeerInfo], timeouts: Timeouts = FOREVER) -> None:
        self.now = 0.0
        self.history: deque[Callable[[], object]] = deque()
        self.slept: list[float] = []
        super().__init__(own, ranks, peers, timeouts, clock=lambda: self.now)
        self.spare_cores = 1

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self.history:
            self.history.popleft()()
        else:
            assert seconds < float("inf"), "it sleeps for ever"
            self.now += seconds

    def leave(self, index: int, reason: str = "its script ended", state: int = LEFT) -> None:
        """An event: a peer leaves, or fails."""
        self.segments[index].reason = reason
        self.segments[index].words[STATE] = state


@pytest.fixture
def make_group() -> Iterator[Callable[..., Group]]:
    """Makes groups of ranks that are all this process."""
    made: list[Group] = []

    def make(own: int = 1, size: int = 3, timeouts: Timeouts = FOREVER) -> Group:
        me = os.getpid()
        peers = [
            PeerInfo(me, new_segment_fd(ROOM), new_bell_fd(), new_bell_fd(), os.pidfd_open(me)) for _ in range(size)
        ]
        made.append(Group(own, range(size), peers, timeouts))
        return made[-1]

    yield make
    for group in made:
        group.close()


@pytest.fixture
def group(make_group: Callable[..., Group]) -> Group:
    """Rank 1 of three."""
    return make_group()


def never() -> bool:
    return False


def what() -> str:
    return "allreduce 'a'"


# The exchange ---------------------------------------------------------------------------------------------------------


def arrive(group: Group, index: int, epoch: int, *words: int) -> None:
    """An event: a peer shows its words at an exchange."""
    theirs = group.segments[index].words
    start = group.mine.layout.lines // 8 + (epoch & 1) * group.mine.layout.line_words
    for place, word in enumerate(words):
        theirs[start + place] = word
    theirs[EPOCH] = epoch


def test_an_exchange_returns_when_the_last_has_come_with_what_each_has_shown(group):
    group.history += [lambda: arrive(group, 2, 1, 30), lambda: arrive(group, 0, 1, 10)]
    assert [list(words) for words in group.exchange([20], "x")] == [[10], [20], [30]]
    assert len(group.slept) == 2


def test_a_peer_that_is_an_exchange_ahead_has_left_its_line_of_this_one(group):
    arrive(group, 0, 1, 10)
    arrive(group, 0, 2, 11)
    arrive(group, 2, 1, 30)
    assert [list(words) for words in group.exchange([20], "x")] == [[10], [20], [30]]
    assert group.slept == []


def test_a_processor_that_reorders_stores_gets_a_fence_before_its_number_and_after_those_of_others(group, monkeypatch):
    seen = []
    monkeypatch.setattr(local_ranks, "SEES_STORES_IN_ORDER", False)
    monkeypatch.setattr(local_ranks, "full_fence", lambda: seen.append(group.mine.words[EPOCH]))
    arrive(group, 0, 1, 10)
    arrive(group, 2, 1, 30)
    assert [list(words) for words in group.exchange([20], "x")] == [[10], [20], [30]]
    assert seen == [0, 1]


@pytest.mark.skipif(not SEES_STORES_IN_ORDER, reason="bells are always rung there")
@pytest.mark.parametrize("size", [FEW_RANKS, FEW_RANKS + 1])
def test_a_few_ranks_wake_each_other_as_they_arrive_and_of_many_the_last_wakes_all(make_group, size):
    group = make_group(size=size)
    rung_before_the_last: list[list[int]] = []

    def rung() -> list[int]:
        return [index for index in group.others if not group.segments[index].words[SLEEPING]]

    def come(epoch: int, *others: int) -> None:
        for index in others:
            arrive(group, index, epoch)
            group.segments[index].words[SLEEPING] = 1

    def last_comes() -> None:
        rung_before_the_last.append(rung())
        come(1, group.others[-1])

    come(1, *group.others[:-1])
    group.segments[group.others[-1]].words[SLEEPING] = 1
    group.history.append(last_comes)
    group.exchange([], "x")
    assert rung_before_the_last == [group.others if size <= FEW_RANKS else []]
    come(2, *group.others)
    group.exchange([], "x")
    assert rung() == group.others


def test_who_is_late_is_named(make_group, caplog):
    group = make_group(timeouts=Timeouts(5.0, 12.0))
    arrive(group, 0, 1)
    with pytest.raises(StallError, match=r"gave up after 12 s: allreduce 'a', which has begun and waits for rank 2 \("):
        group.exchange([], "allreduce 'a'")
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "waiting for 5 s", "waiting for 10 s",
    ]  # fmt: skip


@pytest.mark.parametrize(("state", "verb"), [(LEFT, "has left"), (FAILED, "failed")])
def test_a_peer_that_leaves_or_fails_before_it_comes_ends_the_exchange(group, state, verb):
    arrive(group, 0, 1)
    group.history += [lambda: group.leave(2, "it has its reasons", state)]
    text = (
        rf"^x, which has begun and waits for rank 2 \(process \d+\): rank 2 \(process \d+\) {verb}: it has its reasons$"
    )
    with pytest.raises(JobAbortedError, match=text):
        group.exchange([], "x")


def test_a_peer_that_leaves_right_after_a_small_operation_has_done_its_part_of_it(group):
    """It shows its words and is gone before we look: what it has shown stays."""

    def come_and_go() -> None:
        arrive(group, 2, 1, 30)
        group.leave(2)

    arrive(group, 0, 1, 10)
    group.history += [come_and_go]
    assert [list(words) for words in group.exchange([20], "x")] == [[10], [20], [30]]


def test_a_peer_that_comes_and_leaves_between_the_look_at_its_state_and_the_last_look_is_not_missed(group):
    """The state is read before the last look at what is waited for. The other way round, this would be an error."""
    arrive(group, 0, 1, 10)
    trouble = group._trouble

    def then_it_comes(*arguments: object) -> str | None:
        found = trouble(*arguments)
        arrive(group, 2, 1, 30)
        group.leave(2)
        return found

    group._trouble = then_it_comes
    assert [list(words) for words in group.exchange([20], "x")] == [[10], [20], [30]]
    assert group.slept == []


def test_a_dead_peer_is_described_by_its_end(group, monkeypatch):
    monkeypatch.setattr(
        "distrun.runtime.transport.shared_memory.peer_process.ending", lambda pidfd: "was killed by SIGKILL"
    )
    group.history += [lambda: group.note_end(2)]
    with pytest.raises(JobAbortedError, match=r"^allreduce 'a': rank 2 \(process \d+\) was killed by SIGKILL$"):
        group.wait(never, what)


# Waiting --------------------------------------------------------------------------------------------------------------


def test_what_is_published_between_the_last_look_and_the_sleep_rings(group, monkeypatch):
    """The peer that publishes after we have announced our sleep sees the announcement, and rings."""
    seen = []

    def publish_and_ring() -> None:
        seen.append(group._words[SLEEPING])
        group.segments[2].words[WANTED] = 1
        group.bell.ring()

    group.history += [publish_and_ring]
    assert group.wait(lambda: group.segments[2].words[WANTED] == 1, what)
    assert seen == [1], "we have not announced that we sleep"
    assert group._words[SLEEPING] == 0
    assert os.eventfd_read(group.bell.fd) == 1


def test_what_is_published_between_the_first_looks_and_the_announcement_is_seen_by_the_last_look(group, monkeypatch):
    """The peer that publishes before we have announced our sleep does not ring, so we look once more."""
    arm = group.bell.arm

    def publish_first() -> None:
        group.segments[2].words[WANTED] = 1
        group.bell.ring()
        arm()

    monkeypatch.setattr(group.bell, "arm", publish_first)
    assert group.wait(lambda: group.segments[2].words[WANTED] == 1, what)
    assert group.slept == []


@pytest.mark.parametrize(
    ("spare_cores", "after"),
    [(1, None), (0, NUDGE_AFTER), (-2, 3 * NUDGE_AFTER)],
    ids=["cores are spare", "a core each", "three to a core"],
)
def test_peers_that_may_be_busy_are_nudged_once_the_later_the_more_ranks_share_a_core(group, spare_cores, after):
    group.spare_cores = spare_cores
    group.history += [lambda: None]
    assert not group.wait(never, what, until=group.now + 3.0)
    assert group.slept == ([3.0, 3.0] if after is None else pytest.approx([after, after, 3.0 - after]))
    assert [group.segments[index].words[WANTED] for index in group.others] == [after is not None] * 2


def test_a_nudge_lasts_until_something_is_done(group):
    assert not group.is_nudged
    group._words[WANTED] = 1
    assert group.is_nudged
    group.clear_nudge()
    assert not group.is_nudged


def test_a_thread_that_waits_looks_many_times_before_it_sleeps_and_the_progress_thread_does_not(group):
    looks = []
    for may_spin in (True, False):
        group.may_spin = may_spin
        looks.append(0)

        def look() -> bool:
            looks[-1] += 1
            return False

        group.wait(look, what, until=group.now)
    assert looks[0] > 100
    assert looks[1] <= 3


def test_a_shutdown_in_another_thread_ends_a_wait(group):
    def shut_down() -> None:
        group.stop_reason = "distrun.shutdown() was called"

    group.history += [shut_down]
    with pytest.raises(JobAbortedError, match=r"^allreduce 'a': distrun\.shutdown\(\) was called before it was done$"):
        group.wait(never, what)


# Who leaves while a decision is waited for ----------------------------------------------------------------------------


def test_a_peer_that_has_left_may_have_had_the_decision_that_is_under_way_to_us(group):
    decided = []
    group.leave(2)
    group.history += [lambda: decided.append(1)]
    assert group.wait(lambda: bool(decided), what, is_undecided=True)
    assert group.slept == [REASON_TIMEOUT]


def test_a_stop_at_any_moment_of_a_wait_is_not_waited_for(make_group, monkeypatch):
    """The process is stopped before the n-th reading of the real time, whatever is read there and wherever."""
    for place in range(2, 30):
        group = make_group(timeouts=Timeouts(0.0, 3.0))
        readings = []

        def monotonic(readings=readings, place=place):
            readings.append(1)
            return 100.0 + (50.0 if len(readings) >= place else 0.0)

        monkeypatch.setattr(waking_clock, "_stopped", 0.0)
        monkeypatch.setattr(waking_clock.time, "monotonic", monotonic)
        monkeypatch.setattr(group, "_clock", waking_clock.now)
        group.history += [lambda: None] * 4
        assert group.wait(lambda group=group: len(group.slept) == 4, what)


def test_a_stop_in_a_sleep_after_which_the_wait_is_over_is_known(group, monkeypatch):
    time = [100.0]
    monkeypatch.setattr(waking_clock, "_stopped", 0.0)
    monkeypatch.setattr(waking_clock.time, "monotonic", lambda: time[0])
    monkeypatch.setattr(group, "_clock", waking_clock.now)
    group.history += [lambda: time.append(time.pop() + 100.0)]
    assert group.wait(lambda: bool(group.slept), what, until=101.0)
    assert waking_clock.now() == 101.0


@pytest.mark.parametrize(
    ("index", "state", "ends", "slept", "said"),
    [
        (2, LEFT, False, REASON_TIMEOUT, "has left: its reason"),
        (2, LEFT, True, None, "has left: its reason"),  # it still counts as one that has left
        (0, LEFT, False, 0.0, "has left: its reason"),  # who decides nothing any more
        (2, FAILED, False, 0.0, "failed: its reason"),
    ],
    ids=["left", "left and ended", "the coordinator", "failed"],
)
def test_a_peer_that_is_gone_before_the_decision_ends_the_wait(group, index, state, ends, slept, said):
    group.leave(index, "its reason", state)
    group.history += [lambda: group.note_end(index)] if ends else []
    with pytest.raises(JobAbortedError, match=rf"rank {index} .* {said}"):
        group.wait(never, what, is_undecided=True)
    assert slept is None or sum(group.slept) == pytest.approx(slept)


# Telling --------------------------------------------------------------------------------------------------------------


def test_what_is_announced_first_stays_and_wakes_everybody(group):
    group.announce(FAILED, "the first reason")
    group.announce(LEFT, "another")
    assert (group.mine.words[STATE], group.mine.reason) == (FAILED, "the first reason")
    for index in group.others:
        assert os.eventfd_read(group.bells[index].fd) == 1
        assert os.eventfd_read(group.service_bells[index].fd) == 1


def test_the_rank_that_is_lost_is_known_to_any_thread(group):
    assert group.lost_rank() is None
    group.leave(2)
    assert group.lost_rank() is None
    group.leave(0, "ValueError", FAILED)
    assert "rank 0 " in str(group.lost_rank())


def test_a_forked_child_touches_nothing_of_its_parents_and_ends_the_wait_it_was_born_in(group):
    """The child of a signal handler goes on in the wait that the handler has interrupted."""
    shared, fd = group._words, os.dup(group.bell.fd)  # the parent's
    group.history += [group.disown]
    with pytest.raises(JobAbortedError, match=r": this process was forked before it was done$"):
        group.wait(never, what)
    assert shared[SLEEPING] == 1, "the child has said that its parent is awake"
    assert os.eventfd_read(group.bell.fd) == 1, "the child would sleep until somebody rings for its parent"
    with pytest.raises(BlockingIOError):
        os.eventfd_read(fd)
    os.close(fd)
    group.announce(FAILED, "the child has failed")
    assert shared[STATE] == RUNNING
