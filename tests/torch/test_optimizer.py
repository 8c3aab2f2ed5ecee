"""DistributedOptimizer; see programs/training.py, programs/passes.py and programs/compiled.py for the behaviours."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_together_get_the_result_of_one_process_on_the_combined_batch(job, size):
    job("training", size)


def test_buckets_of_any_size_get_the_same_result(job):
    job("training", 2, DISTRUN_BUCKET_BYTES="700")


@pytest.mark.parametrize("size", [2, 3])
def test_backward_passes_of_all_kinds_reduce_each_gradient_once(job, size):
    job("passes", size)


def test_compiled_models_train(job):
    job("compiled", 2)
