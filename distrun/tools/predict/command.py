"""The command line of `distrun predict`, and what it prints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from distrun.errors import UsageError
from distrun.host.numerals import MOST_SLOTS, whole_number
from distrun.runner.observation.prediction.forecast import Forecast, forecasts
from distrun.runner.observation.prediction.link import Assumptions, assumptions, given_link
from distrun.runner.observation.prediction.profile import JobProfile
from distrun.runner.observation.prediction.reading import read
from distrun.runner.observation.prediction.units import bits_per_second, seconds, shown_rate, shown_seconds
from distrun.runner.planning.placement import spread
from distrun.runner.system.click_options import option

FORMAT = 1
_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
_MOST_HOSTS = 100_000
_HEADINGS = ("hosts", "ranks", "step", "speed-up", "efficiency", "bound by")


@click.command(context_settings=_SETTINGS, options_metavar="[OPTIONS]")
@click.argument("file", metavar="FILE")
@option("--hosts LIST", "Numbers of hosts: 2,4,8. Default: those of the job, 2 and 4 times that.")
@option("--ranks-per-host N", "Default: as many as the job had.", click.IntRange(1, MOST_SLOTS))
@option(
    "--link SPEED",
    "Speed of a host's link, 25gbit, or a file of distrun doctor --json. Default: what the job has measured.",
)
@option(
    "--fabric SPEED",
    "What all hosts together can send at a time, if the switch between them is slower than their links.",
)
@option("--latency TIME", "Delay from host to host: 50us. Default: measured, else 50us.")
@option(
    "--efficiency E",
    "Share of a link that gradients get: 0.8. Default: measured between hosts, else 0.8.",
    click.FloatRange(0, 1, min_open=True),
)
@option(
    "--batch",
    "What stays as it is: the batch of each rank (scaled, default) or of all ranks together (fixed).",
    click.Choice(["scaled", "fixed"]),
    default="scaled",
)
@option("--json as_json", "Print one JSON object, whose format is stable.")
def predict(**options: Any) -> int:
    """Predict how fast a job would be on more hosts: distrun predict trace.json --hosts 4,8,16 --link 25gbit

    FILE is a timeline (distrun --timeline), a report (distrun --report) or a profile of a job that has run, on one host
    or more. For each number of hosts: the time of a step, the speed-up and the efficiency with their error, and what
    bounds the step.
    """
    profile = read(options["file"])
    hosts = _numbers(options["hosts"]) if options["hosts"] else [profile.hosts * times for times in (1, 2, 4)]
    link = given_link(options["link"]) if options["link"] else None
    latency = seconds(options["latency"]) if options["latency"] else None
    per_host = options["ranks_per_host"] or profile.ranks_per_host
    assumed = assumptions(profile, link, latency, options["efficiency"], max(hosts), per_host)
    if options["fabric"]:
        assumed = assumed.with_fabric(bits_per_second(options["fabric"]))
    found = forecasts(profile, assumed, hosts, per_host, options["batch"] == "fixed")
    if options["as_json"]:
        click.echo(json.dumps(_as_json(assumed, found, options["batch"]), indent=2))
    else:
        click.echo(_plain(profile, assumed, found, options["batch"]), nl=False)
    return 0


def _numbers(text: str) -> list[int]:
    """Return the numbers of hosts from a text such as `2,4,8`."""
    numbers = [number for word in text.split(",") if (number := whole_number(word.strip(), most=_MOST_HOSTS))]
    if len(numbers) <= text.count(","):
        raise UsageError(f"--hosts {text!r} is not a list of whole numbers from 1 to {_MOST_HOSTS}: give 2,4,8")
    return numbers


def _plain(profile: JobProfile, assumed: Assumptions, found: Sequence[Forecast], batch: str) -> str:
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


def _as_json(assumed: Assumptions, found: Sequence[Forecast], batch: str) -> dict[str, Any]:
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
    return (
        f"Measured on {spread(profile.ranks, profile.hosts)}: a step of {shown_seconds(profile.seconds.step)}, "
        f"{size:.3g} MB of gradients in {len(profile.gradients)} operations."
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
