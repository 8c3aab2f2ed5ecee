"""Figures for TensorBoard and MLflow: what they are made of, and where they go."""

from __future__ import annotations

import sys
import types

import pytest
from histories.training import MS, START, event

from distrun.runtime.world.scalars.shares import Shares
from distrun.runtime.world.scalars.sinks import ActiveRun, Instances
from distrun.tracing.layout import BACKWARD, FORWARD, INPUT, OPTIMIZER, OTHER, STEP, WAITED, WAITING


def a_step(begin: int, number: int) -> list:
    """Return the events of a step of 100 ms: input 10, forward 20, backward 60 of which it sleeps 15, optimizer 10."""
    return [
        event(INPUT, begin),
        event(FORWARD, begin + 10 * MS, value=8),
        event(BACKWARD, begin + 30 * MS),
        event(WAITING, begin + 75 * MS),
        event(WAITED, begin + 75 * MS, begin + 90 * MS),
        event(OPTIMIZER, begin + 90 * MS),
        event(STEP, begin + 100 * MS, number=number),
    ]


def test_the_figures_of_an_interval():
    shares = Shares(START)
    for number in range(10):
        shares.take(a_step(START + 100 * number * MS, number + 1))
    assert shares.figures(START + 1000 * MS) == pytest.approx(
        {
            "distrun/steps_per_second": 10,
            "distrun/samples_per_second": 80,
            "distrun/share_input": 0.1,
            "distrun/share_computing": 0.75,
            "distrun/share_waiting": 0.15,
        }
    )
    assert shares.step == 10


def test_intervals_divide_what_lasts_longer_than_they():
    shares = Shares(START)
    shares.take([event(BACKWARD, START), event(STEP, START, number=1), event(WAITING, START + 400 * MS)])
    first = shares.figures(START + 1000 * MS)
    assert first["distrun/share_computing"] == pytest.approx(0.4)
    assert first["distrun/share_waiting"] == pytest.approx(0.6)
    shares.take([event(WAITED, START + 400 * MS, START + 1200 * MS), event(OTHER, START + 1500 * MS)])
    shares.take([event(STEP, START + 1600 * MS, number=2)])
    second = shares.figures(START + 2000 * MS)
    assert second["distrun/share_waiting"] == pytest.approx(0.2)
    assert second["distrun/share_computing"] == pytest.approx(0.3)


def test_an_interval_without_a_step_has_no_figures_and_where_only_steps_are_known_no_share_is_made_up():
    shares = Shares(START)
    shares.take([event(INPUT, START)])
    assert shares.figures(START + 1000 * MS) == {}
    shares = Shares(START)
    shares.take([event(STEP, START + MS, number=1)])
    assert set(shares.figures(START + 1000 * MS)) == {"distrun/steps_per_second", "distrun/share_waiting"}


def test_objects_are_found_that_were_made_before_and_after(monkeypatch):
    class Writer:
        def __init__(self, name: str) -> None:
            self.name = name

    module = types.ModuleType("a_writer_of_tests")
    found = Instances((module.__name__, "Writer"), ("no_such_module", "Writer"))
    assert found.all() == []
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert found.all() == []  # it is being imported
    module.Writer = Writer
    before = Writer("before")
    assert found.all() == [before]
    after = Writer("after")
    assert found.all() == [before, after]
    del before
    assert [one.name for one in found.all()] == ["after"]


def test_no_run_of_mlflow_is_begun_for_our_sake(monkeypatch):
    ActiveRun().write({"distrun/steps_per_second": 1.0}, 1)
    fluent = types.ModuleType("mlflow.tracking.fluent")
    monkeypatch.setitem(sys.modules, fluent.__name__, fluent)
    ActiveRun().write({"distrun/steps_per_second": 1.0}, 1)
