"""The command line of `distrun predict`."""

from __future__ import annotations

import json
from typing import Any

import click

from distrun.errors import UsageError
from distrun.host.numerals import MOST_SLOTS, whole_number

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
_MOST_HOSTS = 100_000


@click.command(context_settings=_SETTINGS, options_metavar="[OPTIONS]")
@click.argument("file", metavar="FILE")
@click.option("--hosts", metavar="LIST", help="Numbers of hosts: 2,4,8. Default: those of the job, 2 and 4 times that.")
@click.option(
    "--ranks-per-host", type=click.IntRange(1, MOST_SLOTS), metavar="N", help="Default: as many as the job had."
)
@click.option(
    "--link",
    metavar="SPEED",
    help="Speed of a host's link, 25gbit, or a file of distrun doctor --json. Default: what the job has measured.",
)
@click.option(
    "--fabric",
    metavar="SPEED",
    help="What all hosts together can send at a time, if the switch between them is slower than their links.",
)
@click.option("--latency", metavar="TIME", help="Delay from host to host: 50us. Default: measured, else 50us.")
@click.option(
    "--efficiency",
    type=click.FloatRange(0, 1, min_open=True),
    metavar="E",
    help="Share of a link that gradients get: 0.8. Default: measured between hosts, else 0.8.",
)
@click.option(
    "--batch",
    type=click.Choice(["scaled", "fixed"]),
    default="scaled",
    help="What stays as it is: the batch of each rank (scaled, default) or of all ranks together (fixed).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, whose format is stable.")
def predict(**options: Any) -> int:
    """Predict how fast a job would be on more hosts: distrun predict trace.json --hosts 4,8,16 --link 25gbit

    FILE is a timeline (distrun --timeline), a report (distrun --report) or a profile of a job that has run, on one host
    or more. For each number of hosts: the time of a step, the speed-up and the efficiency with their error, and what
    bounds the step.
    """
    from distrun.runner.observation.prediction import units
    from distrun.runner.observation.prediction.forecast import forecasts
    from distrun.runner.observation.prediction.link import assumptions, given_link
    from distrun.runner.observation.prediction.reading import read
    from distrun.tools.predict import rendering

    profile = read(options["file"])
    hosts = _numbers(options["hosts"]) if options["hosts"] else [profile.hosts * times for times in (1, 2, 4)]
    link = given_link(options["link"]) if options["link"] else None
    latency = units.seconds(options["latency"]) if options["latency"] else None
    per_host = options["ranks_per_host"] or profile.ranks_per_host
    assumed = assumptions(profile, link, latency, options["efficiency"], max(hosts), per_host)
    if options["fabric"]:
        assumed = assumed.with_fabric(units.bits_per_second(options["fabric"]))
    found = forecasts(profile, assumed, hosts, per_host, options["batch"] == "fixed")
    if options["as_json"]:
        click.echo(json.dumps(rendering.as_json(assumed, found, options["batch"]), indent=2))
    else:
        click.echo(rendering.plain(profile, assumed, found, options["batch"]), nl=False)
    return 0


def _numbers(text: str) -> list[int]:
    """Return the numbers of hosts from a text such as `2,4,8`."""
    numbers = [number for word in text.split(",") if (number := whole_number(word.strip(), most=_MOST_HOSTS))]
    if len(numbers) <= text.count(","):
        raise UsageError(f"--hosts {text!r} is not a list of whole numbers from 1 to {_MOST_HOSTS}: give 2,4,8")
    return numbers
