"""Direct passes: whatever the ranks' gradients, failures and joins, all queue the same buckets in the same order.

Histories of ranks without processes: a history says who can go direct, when each rank learns of the decision, in which
order its buckets are complete, and where its pass fails.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from distrun.errors import CollectiveError
from distrun.torch.gradients import direct
from distrun.torch.gradients.bucket_set import BucketSet
from distrun.torch.gradients.direct import FEWEST, DirectPasses

pytestmark = pytest.mark.gate


class Operation:
    """A negotiated operation, with the sum of what the ranks have said."""

    def __init__(self, total):
        self.total, self.is_decided = total, False

    def poll(self):
        return self.is_decided

    def wait(self):
        self.is_decided = True
        return self.total


class OneBucket:
    """A bucket that notes what is done with it."""

    may_be_direct = True

    def __init__(self, number):
        self.number = number
        self.reset()

    def send(self, start):
        assert not self.is_sent
        start(self.number)
        self.is_sent = True

    fill_in = send

    def forfeit(self, start):
        self.send(lambda number: start(f"forfeit {number}"))

    def drop(self):
        assert self.is_sent

    def reset(self):
        self.waiting_for, self.is_sent = {0}, False


class Rank:
    """A rank, with a reducer's use of `DirectPasses`."""

    def __init__(self, buckets, size):
        self.buckets = BucketSet()
        self.buckets._buckets = [OneBucket(number) for number in range(buckets)]
        self.queued, self.negotiated, self.said = [], [], []
        queue = SimpleNamespace(queue=self.queued.append, confirm=lambda: None)
        self.passes = DirectPasses("optimizer")
        self.passes._queue, self.passes._size = queue, size
        self.passes._prepare = self.prepare

    def prepare(self, name, value, caller=None):
        self.said.append((name, value))
        return self.totals[name]

    def run(self, way, begun, failures):
        """Run a backward pass; return whether it has raised."""
        self.totals = {"begin": begun, "end": Operation(failures)}
        begun.is_decided = False
        self.passes.begin(self.buckets, None)
        try:
            for number, bucket in enumerate(way.order):
                if number == way.fails_at:
                    raise ArithmeticError
                begun.is_decided |= number >= way.learns_at
                each = self.buckets._buckets[bucket]
                each.waiting_for.clear()
                for complete in self.passes.next(each, self.buckets):
                    complete.send(self.start)
            for bucket in self.buckets:
                if not bucket.is_sent:
                    bucket.send(self.start)
            self.passes.end()
        except (ArithmeticError, CollectiveError):
            self.passes.forfeit(self.buckets, self.start)
            return True
        finally:
            self.buckets.reset()
            self.passes.close()
        return False

    def start(self, number):
        (self.passes.start if self.passes.is_direct() else self.negotiated.append)(number)


@pytest.fixture(autouse=True)
def plain_buckets(monkeypatch):
    monkeypatch.setattr(direct, "DeviceBucket", OneBucket)
    monkeypatch.setattr(direct.cuda, "is_capturing", lambda: False)
    monkeypatch.setattr(direct, "run", lambda operation: operation)
    monkeypatch.setattr(direct, "submit", lambda operation: operation)


def ways(buckets):
    """One rank's way through a pass."""
    return st.builds(
        SimpleNamespace,
        can=st.sampled_from([True, True, True, False]),
        order=st.permutations(range(buckets)),
        learns_at=st.integers(0, buckets),
        fails_at=st.sampled_from([None, None, *range(buckets)]),
    )


HISTORIES = st.integers(1, 6).flatmap(
    lambda buckets: st.integers(2, 4).flatmap(
        lambda size: st.tuples(
            st.just(buckets), st.lists(st.lists(ways(buckets), min_size=size, max_size=size), min_size=1, max_size=4)
        )
    )
)


def test_a_gpu_that_starts_kernels_in_the_hosts_order_has_no_direct_passes(monkeypatch):
    said = []
    rank = Rank(FEWEST, 2)
    rank.passes._prepare = lambda name, value, caller: said.append(value)
    rank.passes.begin(rank.buckets, None)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    rank.passes.begin(rank.buckets, None)
    assert said == [True, False]


@given(HISTORIES)
def test_all_ranks_queue_the_same_buckets_in_the_same_order_or_none(history):
    buckets, passes = history
    size = len(passes[0])
    ranks = [Rank(buckets, size) for _ in range(size)]
    for ways_of_ranks in passes:
        total = sum(way.can for way in ways_of_ranks)
        failures = sum(way.fails_at is not None for way in ways_of_ranks)
        raised = []
        for rank, way in zip(ranks, ways_of_ranks, strict=True):
            rank.queued, rank.negotiated, rank.said = [], [], []
            rank.passes._queue.queue = rank.queued.append
            raised.append(rank.run(way, Operation(total), failures))
        if total == size and buckets >= FEWEST:
            assert all(rank.queued == list(range(buckets)) and not rank.negotiated for rank in ranks)
            assert raised == [bool(failures)] * size
            assert [rank.said[1:] for rank in ranks] == [[("end", way.fails_at is not None)] for way in ways_of_ranks]
        else:
            assert not any(rank.queued for rank in ranks)
            assert all({str(each)[-1] for each in rank.negotiated} == {*map(str, range(buckets))} for rank in ranks)
        assert not any(bucket.is_sent for rank in ranks for bucket in rank.buckets)
