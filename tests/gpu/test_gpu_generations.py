"""Generations on simulated GPUs: connections are given up and made again, a process keeps its GPU, nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest
from without_launcher.elastic_supervisor import Supervisor, python

pytestmark = pytest.mark.gate
PROGRAM = Path(__file__).parent / "programs" / "gpu_generations.py"


def begun(rank, generation):
    rank.await_step(generation)
    return next(fact for fact in rank.told() if fact.get("begun") == generation)


def test_ranks_that_survive_keep_their_gpus_and_hold_no_more_than_before(gpu_environ, tmp_path):
    with Supervisor(python(PROGRAM), tmp_path, gpu_environ(4)) as supervisor:
        supervisor.begin(4)
        for rank in supervisor.members:
            begun(rank, 1)
        supervisor.kill(0)
        supervisor.assign(supervisor.members)
        survivors = list(supervisor.members)
        for generation in range(2, 12):
            for rank in survivors:
                begun(rank, generation)
            if generation % 2:
                supervisor.prepare()
            supervisor.assign(survivors)
        supervisor.replace(2)
        assert [begun(rank, 13)["device"] for rank in supervisor.members] == ["cuda:1", "cuda:2", "cuda:0"]
        for rank in survivors[:2]:
            held = [fact["held"] for fact in rank.told() if fact.get("begun", 0) > 2]
            # The first figures may be of a moment in which threads of the generation before were about to end.
            assert held[1:9] == held[1:2] * 8
            assert all(now <= before for before, now in zip(*held[:2], strict=True)), held
            assert not any("results of operations" in line or "Traceback" in line for line in rank.lines)


def test_a_death_inside_nccl_spoils_no_step(gpu_environ, tmp_path):
    """Rank 1's part of an allreduce never comes, and then rank 1 dies: rank 0's host has waited, and knows."""
    hangs = {"SIMULATED_NCCL_HANG": "allReduce:5@1"}
    with Supervisor(python(PROGRAM), tmp_path, {**gpu_environ(2), **hangs}) as supervisor:
        supervisor.begin(2)
        begun(supervisor.members[1], 1)
        supervisor.kill(1)
        supervisor.assign(supervisor.members)
        begun(supervisor.members[0], 2)
        assert not any("went on" in line for line in supervisor.members[0].lines)
