"""Data of ranks that are killed, replaced, dropped and added: every sample of an epoch is in one step that is done."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from session.tiers import one_in_gate
from without_launcher.elastic_supervisor import Supervisor, Waiting

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from benchmarks.chaos import checks  # noqa: E402

SAMPLES, BATCH = 216, 6  # divisible by the batches of two ranks and of three: no stream is padded


@pytest.fixture
def train(tmp_path, supervise):
    """Return a function that starts the program of the chaos test on so many ranks."""

    def start(size: int, *options: str) -> Supervisor:
        numbers = {"samples": SAMPLES, "batch": BATCH, "epochs": 1 << 40, "until": "end"}
        arguments = [f"--{name}={number}" for name, number in numbers.items()]
        # The multiprocessing of ranks that are killed leaves folders behind.
        environ = {"TMPDIR": str(tmp_path)}
        return supervise(
            str(ROOT / "benchmarks" / "chaos" / "program"), size, *arguments, "--pause=0.02", *options, **environ
        )

    return start


def disturb(job, seed):
    """Kill a rank, which is not replaced, and two that are; then let the job grow, and end with its epoch."""
    chance = random.Random(seed)
    spare = job.start(0, 3)
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
    job.let_end()


def examined(job):
    """Return the report on a job that is to have lost nothing."""
    facts = job.finish()
    (epochs,) = {fact["epochs"] for fact in facts if fact["what"] == "end"}
    assert epochs
    report = checks.examine(facts, SAMPLES, epochs)
    assert report.faults == []
    return report


@pytest.mark.parametrize("options", [("--workers=2",), ("--data=sampler", "--workers=1")], ids=" ".join)
def test_no_sample_of_a_torch_dataset_is_lost_or_doubled(train, options):
    job = train(3, *options)
    disturb(job, str(options))
    report = examined(job)
    assert (report.sizes, report.generations) == ({2, 3}, 5)


@pytest.mark.gate
@pytest.mark.parametrize("kind", one_in_gate("stream", "tf", "keras"))
def test_no_sample_of_other_data_is(supervise, tmp_path, kind):
    environ = {"KERAS_BACKEND": "numpy", "TF_CPP_MIN_LOG_LEVEL": "3", "TMPDIR": str(tmp_path)}
    job = supervise("data", 3, kind, str(SAMPLES), str(BATCH), **environ)
    disturb(job, kind)
    report = examined(job)
    assert (report.sizes, report.generations) == ({2, 3}, 5)


def test_the_losses_are_those_of_an_undisturbed_job(train):
    job = train(2)
    for rank in (1, 0):
        job.members[0].await_step(job.generation, 7)
        job.replace(rank)
    job.let_end()
    report = examined(job)
    epochs = len(report.losses) * 2 * BATCH // SAMPLES
    assert checks.differences(report, examined(train(2, f"--epochs={epochs}", "--until=never"))) == []
