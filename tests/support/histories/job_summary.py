"""Summaries of jobs, made up, for tests of the report."""

from __future__ import annotations

from distrun.runner.observation.report.histogram import Histogram
from distrun.runner.observation.report.summary import Host, Interval, RankSummary, Scale, Scaling, Summary

BALANCED = {"input": 0.002, "forward": 0.012, "backward": 0.018, "optimizer": 0.002, "other": 0.001, "moving": 0.005}
"""Seconds of a step that has nothing remarkable."""


def rank_of(number: int, **seconds: float) -> RankSummary:
    """Return a rank on a host of its own whose step is balanced but for some activities.

    Args:
        number: its number.
        seconds: seconds of a step by activity; input and moving data replace little of them.
    """
    step = {**BALANCED, **seconds}
    return RankSummary(number, f"h{number}", 1000, 32.0, step)


def summary_of(*ranks: RankSummary) -> Summary:
    """Return a job of some ranks that ended well."""
    steps = Histogram()
    for number in range(1000):
        steps.add(0.04 + 0.00001 * (number % 100))
    shares = {"forward": 0.4, "backward": 0.4, "moving": 0.2}
    return Summary(
        title="train.py, job d4d187d2",
        command="distrun -np 2 python train.py",
        began="2026-01-02 03:04:05 UTC",
        seconds=125.0,
        status=0,
        ending="ended well",
        ranks=ranks,
        hosts=[Host(rank.host, [rank.rank], 35.0, 60.0, 12e6, 12e6) for rank in ranks],
        steps=steps,
        moments=[Interval(float(second), 1.0, 25.0, shares) for second in range(60)],
        scaling=Scaling(
            scales=[Scale(1, 2, 2, 0.05, 0.8), Scale(2, 4, 4, 0.054, 0.74, 0.04), Scale(4, 8, 8, 0.058, 0.69, 0.07)],
            said="Taken are links as fast as those of this job, 1 Gbit/s.",
        ),
        settings={"DISTRUN_WIRE_DTYPE": "bfloat16"},
        versions={"distrun": "0.1"},
    )
