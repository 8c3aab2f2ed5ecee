"""Data of ranks that are killed, replaced, dropped and added: every sample of an epoch is in one step that is done."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from elastic_supervisor import Supervisor, Waiting, python

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import chaos_checks  # noqa: E402

SAMPLES, BATCH, EPOCHS = 192, 4, 3


@pytest.fixture
def train(tmp_path):
    """Return a function that starts the program of the chaos test; its facts are examined at the end."""
    jobs = []

    def start(size: int, *options: str) -> Supervisor:
        numbers = {"samples": SAMPLES, "batch": BATCH, "epochs": EPOCHS}
        arguments = [f"--{name}={number}" for name, number in numbers.items()]
        command = python(BENCHMARKS / "chaos_program.py", *arguments, "--pause=0.02", *options)
        # The multiprocessing of ranks that are killed leaves folders behind.
        environ = {"DISTRUN_STALL_TIMEOUT": "60", "TMPDIR": str(tmp_path)}
        jobs.append(job := Supervisor(command, tmp_path, environ))
        job.begin(size)
        return job

    yield start
    for job in jobs:
        job.__exit__()


def examined(job):
    """Return the report on a job that was to lose nothing."""
    assert job.await_exits() == [0] * len(job.members), [process.output() for process in job.members]
    facts = [fact for process in job.processes for fact in process.told()]
    report = chaos_checks.examine(facts, SAMPLES, EPOCHS)
    assert report.faults == []
    return report


@pytest.mark.parametrize("options", [("--workers=2",), ("--data=sampler", "--workers=1")], ids=" ".join)
def test_no_sample_is_lost_or_doubled(train, options):
    chance = random.Random(str(options))
    job = train(3, *options)
    spare = job.start(0, 3)  # before it is wanted: a job that grows goes on meanwhile, and might come to its end
    for newcomers in (0, 1, 1):
        rank = chance.randrange(len(job.members))
        job.members[0].await_step(job.generation, chance.randrange(1, 5))
        job.replace(rank, newcomers)
    job.members[0].await_step(job.generation, 2)
    job.await_message(spare, Waiting)
    job.prepare("a host has come")
    for process in job.members:
        job.await_message(process, Waiting)
    job.assign([*job.members, spare], "a host has come")
    report = examined(job)
    assert report.sizes == {2, 3}
    assert report.generations == 5


def test_the_losses_are_those_of_an_undisturbed_job(train):
    undisturbed = train(2)
    calm = examined(undisturbed)
    disturbed = train(2)
    for rank in (1, 0):
        disturbed.members[0].await_step(disturbed.generation, 7)
        disturbed.replace(rank)
    assert chaos_checks.differences(examined(disturbed), calm) == []
