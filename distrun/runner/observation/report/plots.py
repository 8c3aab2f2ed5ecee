"""The plots of the page, each from a part of the summary."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from distrun.runner.observation.report.histogram import Histogram
from distrun.runner.observation.report.summary import ACTIVITIES, Interval, RankSummary, Scale
from distrun.runner.observation.report.svg import WIDTH, Canvas, duration, log_ticks, ticks

LEFT, AXIS_LEFT, RIGHT = 130.0, 60.0, 20.0
MOST_ROWS = 64
"""The most rows of a plot with a row per rank. Of more ranks, those that are waited for most are shown."""
_LABEL = 110.0
"""The most room that a label of a mark takes."""
_PLOT = WIDTH - LEFT - RIGHT


def where_a_step_goes(ranks: Sequence[RankSummary]) -> str:
    """Return stacked bars of the seconds per step, with a row per rank."""
    used = [name for name in ACTIVITIES if any(rank.seconds.get(name, 0) > 0 for rank in ranks)]
    longest = max(rank.step for rank in ranks) or 1.0
    top, row = 30.0, 26.0 if len(ranks) <= 16 else 18.0
    height = top + row * len(ranks) + 30
    mean = {name: sum(rank.seconds.get(name, 0) for rank in ranks) / len(ranks) for name in used}
    total = sum(mean.values()) or 1.0
    said = ", ".join(f"{ACTIVITIES[name]} {seconds / total:.0%}" for name, seconds in mean.items())
    canvas = Canvas("steps-of-ranks", "Where a step goes, per rank", f"On average of the ranks shown: {said}.", height)
    _legend(canvas, {name: ACTIVITIES[name] for name in used})
    for tick in ticks(0, longest):
        x = LEFT + _PLOT * tick / longest
        canvas.line(x, top, x, height - 26, "grid")
        canvas.text(x, height - 10, duration(tick) if tick else "0", "faint", "middle")
    for number, rank in enumerate(ranks):
        y = top + row * number + 3
        canvas.text(LEFT - 8, y + row / 2 + 1, f"rank {rank.rank} {_shortened(rank.host)}", "", "end")
        x = LEFT
        for name in used:
            seconds = rank.seconds.get(name, 0.0)
            width = _PLOT * seconds / longest
            share = rank.share(name)
            hint = f"rank {rank.rank}: {ACTIVITIES[name]} {duration(seconds)} per step, {share:.1%}"
            canvas.rectangle(x, y, width, row - 6, f"segment {name}-fill", hint)
            if width > 38:
                canvas.text(x + width / 2, y + row / 2 + 1, f"{share:.0%}", "on", "middle")
            x += width
    return canvas.render()


def distribution(steps: Histogram) -> str:
    """Return the histogram of the durations of steps, on a logarithmic axis, with median and 95th percentile."""
    bars = list(steps.bars(60))
    low, high = bars[0][0], bars[-1][1]
    highest = max(count for _, _, count in bars)
    height, top, bottom, left = 254.0, 48.0, 214.0, AXIS_LEFT
    width = WIDTH - left - RIGHT

    def at(seconds: float) -> float:
        return left + width * math.log(seconds / low) / math.log(high / low)

    marks = {name: steps.quantile(share) for name, share in (("median", 0.5), ("95 %", 0.95))}
    canvas = Canvas(
        "step-times",
        "Distribution of step times",
        f"{steps.count} steps: half of them took less than {duration(marks['median'])}, 95 % less than "
        f"{duration(marks['95 %'])}, the longest {duration(steps.quantile(1.0))}.",
        height,
    )
    _levels(canvas, {tick / highest: f"{tick:g}" for tick in ticks(0, highest, 4) if tick == int(tick)}, top, bottom)
    for begin, end, count in bars:
        tall = (bottom - top) * count / highest
        hint = f"{duration(begin)} to {duration(end)}: {count} steps"
        canvas.rectangle(at(begin), bottom - tall, at(end) - at(begin), tall, "segment forward-fill", hint)
    canvas.line(left, bottom, WIDTH - RIGHT, bottom, "axis")
    for tick in log_ticks(low, high):
        canvas.line(at(tick), bottom, at(tick), bottom + 5, "axis")
        canvas.text(at(tick), bottom + 19, duration(tick), "faint", "middle")
    is_mirrored = at(marks["95 %"]) > WIDTH - RIGHT - _LABEL  # no line crosses a label, either way
    for name, seconds in marks.items():
        is_upper = (name == "95 %") == is_mirrored
        x, y = min(max(at(seconds), left), WIDTH - RIGHT), top - 10 - 18 * is_upper
        canvas.line(x, y - 10, x, bottom, "mark")
        is_left = is_mirrored and x > left + _LABEL
        canvas.text(
            x - 5 if is_left else x + 5, y, f"{name} {duration(seconds)}", "label", "end" if is_left else "start"
        )
    return canvas.render()


def over_time(moments: Sequence[Interval]) -> str:
    """Return the shares of all ranks' time over the job as stacked columns, with the step rate above them."""
    height, top, middle, low, bottom, left = 330.0, 20.0, 120.0, 165.0, 300.0, AXIS_LEFT
    width = WIDTH - left - RIGHT
    end = max(moment.begin + moment.seconds for moment in moments)
    begin = moments[0].begin
    fastest = max(moment.steps for moment in moments) or 1.0
    used = [name for name in ACTIVITIES if any(moment.shares.get(name, 0) > 0 for moment in moments)]

    def at(seconds: float) -> float:
        return left + width * (seconds - begin) / (end - begin)

    slowest = min(moment.steps for moment in moments)
    canvas = Canvas(
        "over-time",
        "Steps per second, and where the time went, over the job",
        f"Between {slowest:.3g} and {fastest:.3g} steps per second.",
        height,
    )
    _levels(canvas, {tick / fastest: f"{tick:g}" for tick in ticks(0, fastest, 3)}, top, middle)
    canvas.text(left, top - 6, "steps per second", "faint")
    points = [(at(moment.begin + moment.seconds / 2), moment.steps) for moment in moments]
    canvas.curve([(x, middle - (middle - top) * steps / fastest) for x, steps in points], "curve")
    _legend(canvas, {name: ACTIVITIES[name] for name in used}, middle + 18)
    for share in (0.0, 0.5, 1.0):
        canvas.text(left - 8, bottom - (bottom - low) * share + 4, f"{share:.0%}", "faint", "end")
    for moment in moments:
        y = bottom
        for name in used:
            tall = (bottom - low) * moment.shares.get(name, 0.0)
            y -= tall
            hint = f"{ACTIVITIES[name]}: {moment.shares.get(name, 0.0):.0%} after {duration(moment.begin)}"
            x = at(moment.begin)
            canvas.rectangle(x, y, at(moment.begin + moment.seconds) - x + 0.3, tall, f"{name}-fill", hint)
    canvas.line(left, bottom, WIDTH - RIGHT, bottom, "axis")
    for tick in ticks(begin, end):
        canvas.text(at(tick), bottom + 18, duration(tick) if tick else "0", "faint", "middle")
    return canvas.render()


def waited_for(ranks: Sequence[RankSummary]) -> str:
    """Return bars of the seconds per step that the others waited for a rank, the slowest first."""
    shown = sorted(ranks, key=lambda rank: -rank.held_up)[:8]
    longest = shown[0].held_up or 1.0
    row, top = 26.0, 8.0
    height = top + row * len(shown) + 30
    first = shown[0]
    canvas = Canvas(
        "waited-for",
        "For whom the others wait",
        f"Most of all for rank {first.rank} on {first.host}: {duration(first.held_up)} per step.",
        height,
    )
    for tick in ticks(0, longest):
        x = LEFT + _PLOT * 0.85 * tick / longest
        canvas.line(x, top, x, height - 26, "grid")
        canvas.text(x, height - 10, duration(tick) if tick else "0", "faint", "middle")
    for number, rank in enumerate(shown):
        y = top + row * number
        width = _PLOT * 0.85 * rank.held_up / longest
        canvas.text(LEFT - 8, y + row / 2 + 4, f"rank {rank.rank} {_shortened(rank.host)}", "", "end")
        hint = f"the others wait {duration(rank.held_up)} per step for rank {rank.rank}"
        canvas.rectangle(LEFT, y + 3, width, row - 6, "waiting-fill", hint)
        share = f"{rank.held_up / rank.step:.0%} of a step" if rank.step else ""
        canvas.text(LEFT + width + 6, y + row / 2 + 4, share)
    return canvas.render()


def scaling(scales: Sequence[Scale]) -> str:
    """Return the efficiency now and on more hosts, with error bars."""
    height, top, bottom, left = 230.0, 20.0, 180.0, AXIS_LEFT
    width = WIDTH - left - RIGHT
    said = "; ".join(f"{scale.ranks} ranks {scale.efficiency:.0%}" for scale in scales)
    canvas = Canvas("scaling", "Scaling efficiency on more hosts", f"Efficiency against one rank: {said}.", height)
    _levels(canvas, {share: f"{share:.0%}" for share in (0.0, 0.25, 0.5, 0.75, 1.0)}, top, bottom)
    points = []
    for number, scale in enumerate(scales):
        x = left + width * (number + 0.5) / len(scales)
        y = bottom - (bottom - top) * min(scale.efficiency, 1.0)
        spread = (bottom - top) * scale.error
        canvas.line(x, max(top, y - spread), x, min(bottom, y + spread), "axis")
        points.append((x, y))
        label = f"{scale.efficiency:.0%}, step {duration(scale.step)}"
        canvas.text(x, max(top, y - spread) - 9, label, "", "middle")
        now = " (now)" if scale.factor == 1 else ""
        canvas.text(x, bottom + 20, f"{scale.hosts} hosts{now}" if scale.hosts > 1 else f"1 host{now}", "", "middle")
        canvas.text(x, bottom + 38, f"{scale.ranks} ranks", "faint", "middle")
    canvas.curve(points, "curve")
    for (x, y), scale in zip(points, scales, strict=True):
        error = f" ± {scale.error * 100:.0f} points" if scale.error else ""
        canvas.dot(x, y, "forward-fill", f"{scale.ranks} ranks: {scale.efficiency:.0%}{error}")
    return canvas.render()


def _levels(canvas: Canvas, labels: Mapping[float, str], top: float, bottom: float) -> None:
    """Draw horizontal lines with labels, by the share of the height."""
    for share, label in labels.items():
        y = bottom - (bottom - top) * share
        canvas.line(AXIS_LEFT, y, WIDTH - RIGHT, y, "grid")
        canvas.text(AXIS_LEFT - 8, y + 4, label, "faint", "end")


def _legend(canvas: Canvas, names: Mapping[str, str], y: float = 4.0) -> None:
    x = 0.0
    for name, title in names.items():
        canvas.rectangle(x, y, 12, 12, f"{name}-fill")
        canvas.text(x + 17, y + 11, title)
        x += 30 + 6.9 * len(title)


def _shortened(host: str) -> str:
    host = host.partition(".")[0] if not host.replace(".", "").isdigit() else host
    return host if len(host) <= 11 else f"{host[:10]}…"
