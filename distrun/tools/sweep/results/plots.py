"""The plots of the page: how the best value came about, all trials in parallel coordinates, and importance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from distrun.runner.observation.report.svg import WIDTH, Canvas, log_ticks, ticks
from distrun.tools.sweep.policy.trials import State, Trial
from distrun.tools.sweep.results.sentences import parameters
from distrun.tools.sweep.results.standing import ranked
from distrun.tools.sweep.space.ranges import Choices, Range, as_number, shown

STYLE = """
svg .trial{fill:none;stroke:var(--line);stroke-width:1}
svg .good{fill:none;stroke:var(--forward);stroke-width:1.6}
svg .first{fill:none;stroke:var(--waiting);stroke-width:3}
"""
_FILLS = {State.COMPLETE: "forward-fill", State.PRUNED: "input-fill"}
_LARGEST, _LEAST = 1e307, 1e-300  # of what axes show, so that no difference is infinite, and no step is 0
_LEFT, _RIGHT, _TOP = 70.0, 20.0, 14.0


class _Axis:
    """A vertical axis from a low value below to a high one above."""

    def __init__(self, low: float, high: float, height: float, is_log: bool = False) -> None:
        low, high = (min(max(float(end), -_LARGEST), _LARGEST) for end in (low, high))
        if high - low < _LEAST:
            margin = 0.5 * abs(low) if abs(low) > _LEAST else 0.5
            low, high, is_log = low - margin, high + margin, False
        self._is_log = is_log
        self.low, self.high, self._height = low, high, height

    def __call__(self, value: float) -> float:
        low, high = (math.log(self.low), math.log(self.high)) if self._is_log else (self.low, self.high)
        at = math.log(max(value, self.low)) if self._is_log else value
        return _TOP + self._height * (1 - (min(max(at, low), high) - low) / (high - low))

    @property
    def ticks(self) -> list[float]:
        return log_ticks(self.low, self.high) if self._is_log else ticks(self.low, self.high, 5)


def value_axis(values: Sequence[float], height: float) -> _Axis:
    """Return an axis for values, logarithmic where they are above 0 and far apart."""
    low, high = min(values), max(values)
    return _Axis(low, high, height, is_log=low > 0 and high > 50 * low)


def history(trials: Sequence[Trial], minimizes: bool) -> str:
    """Return the values of all trials in their order, and the best so far."""
    height = 260.0
    finite = sorted((trial for trial in trials if trial.result.is_finite), key=lambda trial: trial.number)
    values = [trial.value or 0.0 for trial in finite]
    title = "Values of the trials, in their order"
    canvas = Canvas("history", title, f"{len(finite)} trials, from {min(values):.4g} to {max(values):.4g}", 310)
    y = value_axis(values, height)
    last = max(1, finite[-1].number)
    width = WIDTH - _LEFT - _RIGHT
    for tick in y.ticks:
        canvas.line(_LEFT, y(tick), WIDTH - _RIGHT, y(tick), "grid")
        canvas.text(_LEFT - 8, y(tick) + 4, f"{tick:.4g}", "faint", "end")
    for tick in ticks(0, last, 10):
        if tick == int(tick):
            canvas.text(_LEFT + width * tick / last, _TOP + height + 20, f"{tick:g}", "faint", "middle")
    canvas.text(_LEFT + width / 2, _TOP + height + 36, "trial", "faint", "middle")
    best: list[tuple[float, float]] = []
    for trial, value in zip(finite, values, strict=True):
        x = _LEFT + width * trial.number / last
        if trial.state is State.COMPLETE and (not best or (value < best[-1][1]) == minimizes):
            best += [(x, best[-1][1]), (x, value)] if best else [(x, value)]
        hint = f"trial {trial.number}, {trial.state.value}: {value:.6g} ({parameters(trial.values)})"
        canvas.dot(x, y(value), _FILLS.get(trial.state, "other-fill"), hint)
    if best:
        best.append((WIDTH - _RIGHT, best[-1][1]))
        canvas.curve([(x, y(value)) for x, value in best], "curve")
    return canvas.render()


def parallel_coordinates(trials: Sequence[Trial], spaces: Mapping[str, Range], minimizes: bool) -> str:
    """Return a line for each trial through its values on one axis per parameter, and its value on the last."""
    height = 260.0
    finite = [trial for trial in ranked(trials, minimizes) if trial.result.is_finite]
    said = f"{len(finite)} trials; the better tenth is coloured, and the best is thick"
    canvas = Canvas("parallel", "Parameters and values of the trials", said, 320)
    values = [trial.value or 0.0 for trial in finite]
    names = [*spaces, "value"]
    xs = [_LEFT + (WIDTH - _LEFT - 90) * number / max(1, len(names) - 1) for number in range(len(names))]
    lines: dict[int, list[tuple[float, float]]] = {trial.number: [] for trial in finite}
    for name, x in zip(names, xs, strict=True):
        canvas.line(x, _TOP, x, _TOP + height, "axis")
        canvas.text(x, _TOP + height + 30, name, "", "middle")
        heights = _column(canvas, x, height, name, finite, values, spaces)
        for trial, y in zip(finite, heights, strict=True):
            lines[trial.number].append((x, y))
    good = max(1, math.ceil(len(finite) / 10))
    for place, trial in reversed(list(enumerate(finite))):
        canvas.curve(lines[trial.number], "first" if not place else "good" if place < good else "trial")
    return canvas.render()


def _column(
    canvas: Canvas,
    x: float,
    height: float,
    name: str,
    trials: Sequence[Trial],
    values: Sequence[float],
    spaces: Mapping[str, Range],
) -> list[float]:
    """Label one axis; return where each trial crosses it."""
    space = spaces.get(name)
    if isinstance(space, Choices):
        step = height / max(1, len(space.values) - 1)
        places = {value: _TOP + height - step * number for number, value in enumerate(space.values)}
        for value, y in places.items():
            canvas.text(x + 6, y + 4, shown(value), "faint")
        return [places.get(str(trial.values[name]), _TOP) for trial in trials]
    if space is None:
        axis, numbers = value_axis(values, height), list(values)
    else:
        axis = _Axis(space.low, space.high, height, space.is_log)
        numbers = [as_number(trial.values[name]) or 0.0 for trial in trials]
    for tick in axis.ticks:
        canvas.text(x + 6, axis(tick) + 4, f"{tick:.4g}", "faint")
    return [axis(number) for number in numbers]


def importance(shares: Mapping[str, float]) -> str:
    """Return a bar for each parameter."""
    said = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    canvas = Canvas("importance", "Importance of the parameters", said, 30.0 * len(shares) + 10)
    left = 160.0
    for number, (name, share) in enumerate(shares.items()):
        y = 8 + 30.0 * number
        canvas.text(left - 10, y + 14, name, "", "end")
        canvas.rectangle(left, y, (WIDTH - left - 70) * share, 18, "forward-fill", f"{name}: {share:.1%}")
        canvas.text(left + (WIDTH - left - 70) * share + 8, y + 14, f"{share:.0%}", "faint")
    return canvas.render()
