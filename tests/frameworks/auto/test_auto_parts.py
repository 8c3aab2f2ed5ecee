"""Batches cut into the parts of the ranks."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from distrun.auto.torch.parts import cut, pooled

pytestmark = pytest.mark.gate


@pytest.mark.parametrize(("count", "ranks"), [(64, 4), (33, 2), (7, 3), (4, 4), (5, 4)])
@pytest.mark.parametrize("uneven", [False, True])
def test_the_parts_of_all_ranks_are_the_batch(count, ranks, uneven):
    batch = list(range(count))
    parts = [cut(count, ranks, rank, uneven) for rank in range(ranks)]
    assert [sample for part in parts for sample in part.take(batch)] == batch
    assert max(parts[0].sizes) - min(parts[0].sizes) <= (2 if uneven else 1)
    assert min(parts[0].sizes) >= 1


def test_a_batch_that_divides_evenly_can_be_cut_unevenly():
    assert cut(8, 4, 0).sizes == (2, 2, 2, 2)
    assert cut(8, 4, 0, uneven=True).sizes == (3, 2, 2, 1)


def test_every_rank_has_all_of_a_batch_that_is_too_small():
    part = cut(3, 4, 2)
    assert part.is_whole
    assert part.take([5, 6, 7]) == [5, 6, 7]


def test_in_scale_mode_each_rank_takes_a_batch_and_the_last_ones_are_cut():
    batches = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    by_rank = [[part.take(samples) for part, samples in pooled(batches, 2, rank)] for rank in range(2)]
    assert by_rank == [[[0, 1, 2], [4, 5], [8]], [[3], [6, 7], [9]]]
