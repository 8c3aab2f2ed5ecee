"""Tuning the fusion threshold: what is added to the decisions of the coordinator, on a clock that is made up."""

from __future__ import annotations

from random import Random

import pytest

from distrun.runtime.engine.autotuning import turns
from distrun.runtime.engine.autotuning.chosen import autotuned
from distrun.runtime.engine.autotuning.journal import Journal
from distrun.runtime.engine.autotuning.policy import LIMIT
from distrun.runtime.engine.fusion_tuning import FusionTuner
from distrun.runtime.negotiation.decisions import Define, Execute, Retune
from distrun.runtime.operations.request import Request

pytestmark = pytest.mark.usefixtures("nothing_tuned")

DEFAULT = 64 << 20
COUNT = 200
SMALL = 64 << 10  # bytes: 200 of them are 12.5 MiB


def requests(names: bool = True, nbytes: int = SMALL) -> list[Request]:
    return [Request("allreduce", f"t{n}" if names else None, "float32", ((nbytes // 4,),)) for n in range(COUNT)]


class Job:
    """A tuner, and steps of which each decides about the same operations in two lots."""

    def __init__(self, known: list[Request], seconds=lambda threshold: 1.0) -> None:
        self.tuner = FusionTuner(DEFAULT, known.__getitem__, Journal("operations", 1, None, False), Random(1))
        self.threshold, self.now, self.seen, self.steps = DEFAULT, 0.0, [], 0
        self._seconds = seconds

    def step(self) -> None:
        half = COUNT // 2
        decisions = [Execute(list(range(half))), Execute([3], 0, 1), Execute(list(range(half, COUNT)))]
        out = list(self.tuner.amend(decisions, self.now))
        assert [each for each in out if not isinstance(each, Retune)] == decisions
        changes = [each for each in out if isinstance(each, Retune)]
        assert len(changes) <= 1
        if changes:
            assert out[0] is changes[0]  # in front of the mark, which is in the first lot
            self.threshold = changes[0].threshold
        self.seen.append(self.threshold)
        self.now += self._seconds(self.threshold)
        self.steps += 1

    def run(self, most: int = 200) -> None:
        while not self.tuner.is_over and self.steps < most:
            self.step()


def test_what_makes_steps_faster_is_found_and_told():
    job = Job(requests(), lambda threshold: 0.7 if threshold == 1 << 20 else 1.0)
    job.run()
    assert job.threshold == 1 << 20
    assert job.steps <= LIMIT + 8  # the first ones show what there is to tune
    (tuned,) = autotuned()
    assert tuned.setting == {"fusion_threshold": 1 << 20}
    assert (tuned.seconds, tuned.default_seconds) == (pytest.approx(0.7), pytest.approx(1.0))


def test_the_default_stays_where_nothing_is_faster():
    job = Job(requests())
    job.run()
    assert job.threshold == DEFAULT
    assert autotuned()[0].is_default


def test_thresholds_that_change_nothing_are_not_tried():
    job = Job(requests(nbytes=4 << 10))  # less than 1 MiB in all
    job.run()
    assert set(job.seen) == {DEFAULT}
    assert autotuned() == ()


def test_steps_of_unnamed_operations_are_not_known():
    job = Job(requests(names=False))
    job.run(60)
    assert set(job.seen) == {DEFAULT}
    assert not job.tuner.is_over


def test_it_keeps_still_while_another_tuner_works():
    job = Job(requests(), lambda threshold: 0.7 if threshold == 1 << 20 else 1.0)
    while job.threshold == DEFAULT:
        job.step()
    other = object()
    assert turns.take(other)
    for _ in range(30):
        job.step()
        assert job.threshold == DEFAULT
    turns.give_back(other)
    job.run()
    assert job.threshold == 1 << 20


def test_other_decisions_pass_as_they_are():
    tuner = Job(requests()).tuner
    decisions = [Define(1, requests()[1]), Execute([1]), Execute([1], 0, 2)]
    assert list(tuner.amend(decisions, 1.0)) == decisions
