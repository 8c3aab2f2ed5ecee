"""The programs of this folder, whose ranks check everything themselves; their first lines say what they are about."""

from __future__ import annotations

import re
import signal

import pytest
from session.tiers import one_in_gate
from without_launcher.unlaunched_ranks import named, ready

PROGRAMS = {
    "alone": [1],
    "checkpoints/checkpoint": [2, (1, 2)],
    "collectives": [2, (1, 1)],
    "compiled": [2],
    "diloco": [(1, 2), 2],
    "gradients": [(1, 2), 3],
    "normalization": [2, 3],
    "parameters": [(1, 2)],
    "passes": [(1, 2)],
    "process_sets": [(1, 2), 3],
    "residuals": [(1, 2), 2],
    "sparse_tensors": [(1, 2), 3],
    "state": [(1, 2)],
    "training": [2, (2, 2)],
    "uneven_data": [(1, 2), 3],
}
"""Each with the numbers of ranks, or of ranks on each host; the gate has the first of them."""
WITH_FOLDER = {"checkpoints/checkpoint", "residuals"}


@pytest.mark.gate
@pytest.mark.parametrize(
    ("program", "size"),
    [
        case
        for program, sizes in PROGRAMS.items()
        for case in one_in_gate(*(pytest.param(program, size) for size in sizes))
    ],
    ids=str,
)
def test_in_the_gate(job, program, size, tmp_path):
    job(program, size, *([str(tmp_path)] if program in WITH_FOLDER else []))


@pytest.mark.parametrize(
    ("program", "size"), [("elastic", (1, 2)), ("elastic", 3), ("quantised", 2), ("quantised", (1, 2))], ids=str
)
def test_behind_the_gate(job, program, size):
    job(program, size)


@pytest.mark.gate
@pytest.mark.parametrize("size", one_in_gate(2, (1, 2)), ids=str)
def test_groups_that_change_under_their_name_are_reduced_as_they_are(job, size):
    job("gpu/repeated", size, "cpu")


@pytest.mark.gate
@pytest.mark.parametrize("size", one_in_gate(2, (1, 2)), ids=str)
def test_ranks_that_tune_choose_alike_and_train_as_without_it(job, size, tmp_path):
    log = str(tmp_path / "log.csv")
    job("tuning", size, log, DISTRUN_AUTOTUNE="1", DISTRUN_AUTOTUNE_LOG=log)


def test_buckets_of_any_size_get_the_same_result(job):
    job("training", 2, DISTRUN_BUCKET_BYTES="700")


def test_every_large_reduction_is_quantised_where_the_job_is_told_to(job):
    job("quantised_job", (1, 1), DISTRUN_WIRE_DTYPE="int4")


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
