"""Predictions as a table for a person, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distrun.runner.observation.prediction.forecast import Forecast
from distrun.runner.observation.prediction.link import Assumptions
from distrun.runner.observation.prediction.profile import JobProfile
from distrun.runner.observation.prediction.units import shown_rate, shown_seconds

FORMAT = 1
_HEADINGS = ("hosts", "ranks", "step", "speed-up", "efficiency", "bound by")


def plain(profile: JobProfile, assumed: Assumptions, found: Sequence[Forecast], batch: str) -> str:
    """Return the measurements, a line for each number of hosts, and the assumptions, as text."""
    rows = [_HEADINGS, *(_row(item) for item in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = [_measured(profile)]
    if any(item.hosts > 1 for item in found):
        network = assumed.network
        limit = network.fabric_bits_per_s
        together = f", and at most {shown_rate(limit)} for all hosts together" if limit else ""
        lines.append(
            f"Predicted for links of {shown_rate(network.bits_per_s)}, of which gradients get {network.efficiency:.0%}"
            f"{together}."
        )
    lines.append("")
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        lines.append("  ".join([*cells, row[-1]]))
    lines += ["", f"+- is one standard error. {_batch(batch)}", *assumed.notes]
    return "\n".join(lines) + "\n"


def as_json(assumed: Assumptions, found: Sequence[Forecast], batch: str) -> dict[str, Any]:
    """Return the object of `distrun predict --json`. Members may be added, and `format` grows when one changes."""
    network = assumed.network
    return {
        "format": FORMAT,
        "batch": batch,
        "link": {
            "bits_per_s": network.bits_per_s,
            "efficiency": network.efficiency,
            "efficiency_error": assumed.efficiency_deviation,
            "latency_s": network.latency,
        },
        "predictions": [item.to_json() for item in found],
        "notes": list(assumed.notes),
    }


def _measured(profile: JobProfile) -> str:
    size = sum(batch.bytes for batch in profile.gradients) / 1e6
    ranks = f"{profile.ranks} rank{'s' * (profile.ranks > 1)} on {profile.hosts} host{'s' * (profile.hosts > 1)}"
    return (
        f"Measured on {ranks}: a step of {shown_seconds(profile.seconds.step)}, {size:.3g} MB of gradients in "
        f"{len(profile.gradients)} operations."
    )


def _row(item: Forecast) -> tuple[str, ...]:
    return (
        str(item.hosts),
        str(item.ranks),
        f"{shown_seconds(item.seconds)} +- {item.error / item.seconds if item.seconds else 0:.0%}",
        f"{item.speedup:.3g}",
        f"{item.efficiency:.0%} +- {item.efficiency_error * 100:.0f}",
        item.bound,
    )


def _batch(batch: str) -> str:
    if batch == "fixed":
        return "The batch of all ranks together stays; the speed-up is over one rank that has all of it."
    return "The batch of each rank stays; the speed-up is over one rank."
