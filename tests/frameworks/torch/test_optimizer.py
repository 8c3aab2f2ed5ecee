"""DistributedOptimizer; the behaviours are in programs/training.py, passes.py, parameters.py and compiled.py.

Those of DiLoCo and local SGD are in diloco.py.
"""

from __future__ import annotations

import re
import signal

import pytest
from session.tiers import one_in_gate
from without_launcher.unlaunched_ranks import named, ready


@pytest.mark.gate
@pytest.mark.parametrize("size", one_in_gate(2, (2, 2)), ids=str)
def test_ranks_together_get_the_result_of_one_process_on_the_combined_batch(job, size):
    job("training", size)


def test_buckets_of_any_size_get_the_same_result(job):
    job("training", 2, DISTRUN_BUCKET_BYTES="700")


@pytest.mark.gate
def test_backward_passes_of_all_kinds_reduce_each_gradient_once(job):
    job("passes", (1, 2))


@pytest.mark.gate
def test_parameters_may_come_and_go_and_have_sparse_gradients(job):
    job("parameters", (1, 2))


@pytest.mark.gate
@pytest.mark.parametrize("size", one_in_gate((1, 2), 3), ids=str)
def test_adasum_combines_the_steps_of_all_ranks(job, size):
    job("adasum", size)


@pytest.mark.gate
def test_compiled_models_train(job):
    job("compiled", 2)


@pytest.mark.gate
@pytest.mark.parametrize("size", one_in_gate((1, 2), 2), ids=str)
def test_hosts_train_by_themselves_and_come_together_now_and_then(job, size):
    job("diloco", size)


@pytest.mark.parametrize(("hosts", "victim", "host"), [((1, 1), 0, 0), ((2, 1), 1, 0)])
def test_a_killed_rank_is_named_in_the_middle_of_an_exchange_between_hosts(ranks, hosts, victim, host):
    everybody = ready(ranks("diloco_killed", str(victim), hosts=hosts))
    everybody[victim].await_stop()
    everybody[victim].signal(signal.SIGKILL)
    for place, rank in enumerate(everybody):
        if place != victim:
            assert rank.end() == 0, rank.stderr.text
            gone = rf"{named(victim, everybody[victim].pid, host)} (was killed by SIGKILL|is gone)"
            said = rank.stdout.text
            assert re.search(rf"^JobAbortedError: .*{gone}", said, re.MULTILINE), said
            assert re.search(rf"^merge: JobAbortedError: .*{gone}", said, re.MULTILINE), said
