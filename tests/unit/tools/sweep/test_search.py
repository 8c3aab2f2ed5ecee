"""Search by Optuna, together with pruning, on a toy problem whose best is known; and what is told of trials."""

import math

import pytest

from distrun.tools.sweep.policy.halving import Halving
from distrun.tools.sweep.policy.trials import State, Trial
from distrun.tools.sweep.search.listed import grid
from distrun.tools.sweep.search.optuna_search import OptunaSearch
from distrun.tools.sweep.space.ranges import Choices, Floats, Integers

pytest.importorskip("optuna")
EPOCHS = 18
SPACE = {"lr": Floats(1e-4, 1.0, is_log=True), "width": Choices(("16", "32", "64")), "layers": Integers(1, 4)}


def loss(values, epoch):
    """A loss that falls to its best at lr=0.03, width=32 and two layers, where it is 0."""
    distance = (math.log10(values["lr"]) - math.log10(0.03)) ** 2
    distance += 0.5 * (values["width"] != "32") + 0.2 * abs(values["layers"] - 2)
    return distance + (1 + distance) / epoch - 1 / EPOCHS


def ended(number, values, *reports, state=State.COMPLETE):
    return Trial(number, values, state, reports=list(reports))


def run(source, halving):
    """Run all trials one after the other; return them and the number of epochs."""
    results, epochs = [], 0
    while (values := source.ask(len(results))) is not None:
        reports = []
        is_pruned = False
        for epoch in range(1, EPOCHS + 1):
            epochs += 1
            reports.append((epoch, loss(values, epoch)))
            is_pruned = halving is not None and not halving.judge(len(results), epoch, reports[-1][1])
            if is_pruned:
                break
        results.append(ended(len(results), values, *reports, state=State.PRUNED if is_pruned else State.COMPLETE))
        source.tell(results[-1])
    return results, epochs


def best(results):
    return min((trial for trial in results if trial.state is State.COMPLETE), key=lambda trial: trial.value)


def test_a_search_with_pruning_finds_a_known_best_in_fewer_epochs_than_a_grid():
    found, epochs = run(OptunaSearch(SPACE, 60, True, seed=1), Halving(True, 3, 2))
    points = grid({**SPACE, "lr": Choices(("0.0001", "0.001", "0.01", "0.1", "1.0"))})
    grid_best = min(loss({**point, "lr": float(point["lr"])}, EPOCHS) for point in points)
    first = best(found)
    assert (first.values["width"], first.values["layers"]) == ("32", 2)
    assert first.value < grid_best
    assert epochs < 0.6 * len(points) * EPOCHS


def test_a_seed_makes_the_choices_the_same_each_time():
    one, other = (run(OptunaSearch(SPACE, 12, True, seed=3), None)[0] for _ in range(2))
    assert one == other


def test_a_search_that_is_resumed_knows_what_was_tried_and_tries_again_what_was_not_finished():
    results, _ = run(OptunaSearch(SPACE, 20, True, seed=3), Halving(True))
    again = {"lr": 0.5, "width": "64", "layers": 4}
    resumed = OptunaSearch(SPACE, 22, True, seed=3, finished=results, again=[again])
    assert resumed.ask(20) == again
    assert resumed.ask(21) is not None
    assert resumed.ask(22) is None


def test_trials_that_fail_or_diverge_do_not_disturb_a_search():
    space = {"steps": Integers(0, 10, 3), "x": Floats(0, 1, 0.3)}
    source = OptunaSearch(space, 4, False)
    values = [source.ask(number) for number in range(4)]
    assert all(value["steps"] in (0, 3, 6, 9) for value in values)
    told = [
        ended(0, values[0], (1, 0.1), state=State.FAILED),
        ended(1, values[1], (1, 0.5), (2, math.nan)),
        ended(2, values[2], (1, 0.7), state=State.PRUNED),
        ended(3, values[3], (1, 0.9)),
    ]
    for trial in told:
        source.tell(trial)
    assert [trial.state.name for trial in source._study.trials] == ["FAIL", "PRUNED", "PRUNED", "COMPLETE"]
    assert OptunaSearch(space, 5, False, finished=told[1:3]).ask(4) is not None


def test_of_very_many_reports_some_are_kept_and_the_last():
    source = OptunaSearch(SPACE, 1, True)
    reports = [(step, 1 / step) for step in range(1, 100_001)]
    source.tell(ended(0, source.ask(0), *reports, state=State.PRUNED))
    (trial,) = source._study.trials
    assert len(trial.intermediate_values) < 1100
    assert trial.last_step == 99_999
    assert trial.value == 1e-5
