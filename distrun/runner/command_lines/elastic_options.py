"""The options of elastic jobs, and whether a command line asks for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from distrun.host.numerals import MOST_RANKS, MOST_SLOTS
from distrun.runner.system.click_options import POSITIVE, option

ELASTIC_OPTIONS = (
    option(
        "--elastic",
        "Go on when ranks fail or hosts come and go: scripts with distrun.elastic in place, others by restarts. "
        "The next nine options imply it.",
    ),
    option("--min-np N", "Go on with N ranks at least. Default: as -np.", click.IntRange(1, MOST_RANKS)),
    option(
        "--max-np N",
        "Grow to N ranks at most. Default: as -np; with --hosts-from no limit.",
        click.IntRange(1, MOST_RANKS),
    ),
    option(
        "--hosts-from SCRIPT",
        "Ask a script every second for the hosts that may be used now, which it prints as NAME or NAME:SLOTS.",
    ),
    option(
        "--spares K",
        "Keep K processes on each host that have imported what the ranks have, to replace failed ones at once. "
        "Default: 0.",
        click.IntRange(0, MOST_SLOTS),
    ),
    option(
        "--max-restarts N",
        "Give up after more than N failures within --restart-window. Default: 10.",
        click.IntRange(0),
    ),
    option("--restart-window S", "Forget a failure after S seconds. Default: 3600.", POSITIVE),
    option(
        "--reset-limit N",
        "Give up after more than N failures, however long ago. Default: --max-restarts counts.",
        click.IntRange(0),
    ),
    option(
        "--cooldown S[,MOST]",
        "Bar a slot or a host that fails again and again for S seconds, then for twice as long each time, and for "
        "MOST at most. Default: 10,3600.",
    ),
    option("--elastic-timeout S", "Wait S seconds for --min-np ranks. Default: 600.", POSITIVE),
)
_IMPLYING = (
    *("min_np", "max_np", "hosts_from", "spares", "max_restarts"),
    *("restart_window", "reset_limit", "cooldown", "elastic_timeout"),
)


def is_elastic(options: Mapping[str, Any]) -> bool:
    """Whether the options ask for an elastic job. A value of 0, as in `--max-restarts 0`, does not."""
    return options["elastic"] or any(options[name] not in (None, 0) for name in _IMPLYING)
