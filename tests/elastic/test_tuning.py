"""Autotuning in a job whose ranks change: it begins again, and all ranks go by the same setting in every step."""

from __future__ import annotations

import csv

import pytest

pytest.importorskip("torch")

STEPS = 80  # of the second generation, which begins whenever the test comes to it


def test_the_ranks_tune_again_when_one_was_replaced(supervise, tmp_path):
    log = tmp_path / "log.csv"
    supervisor = supervise("tuning", 2, str(STEPS), DISTRUN_AUTOTUNE="1", DISTRUN_AUTOTUNE_LOG=str(log))
    supervisor.members[0].await_step(1, 70)
    supervisor.replace(1)
    supervisor.finish(2)
    ends = [fact for process in supervisor.members for fact in process.told() if "weights" in fact]
    assert len({fact["weights"] for fact in ends}) == 1
    assert ends[0]["worlds"] == [1, 2]
    assert ends[1]["worlds"] == [2]  # the newcomer
    settings = {}
    for process in supervisor.processes:
        for fact in process.told():
            if "step" in fact:
                settings.setdefault((fact["generation"], fact["step"]), set()).add(tuple(fact["setting"]))
    assert all(len(used) == 1 for used in settings.values())
    assert len({used for (generation, _), (used,) in settings.items() if generation == 2}) > 1
    with log.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["world"] for row in rows if row["decision"].startswith("end:")] == ["1", "2"]
    assert {row["tuned"] for row in rows} == {"gradients"}
