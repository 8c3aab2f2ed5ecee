"""The options of elastic jobs, and whether a command line asks for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from distrun.host.numerals import MOST_RANKS, MOST_SLOTS

ELASTIC_OPTIONS = (
    click.option(
        "--elastic",
        is_flag=True,
        help="Go on when ranks fail or hosts come and go: scripts with distrun.elastic in place, others by restarts. "
        "The next nine options imply it.",
    ),
    click.option(
        "--min-np",
        type=click.IntRange(1, MOST_RANKS),
        metavar="N",
        help="Go on with N ranks at least. Default: as -np.",
    ),
    click.option(
        "--max-np",
        type=click.IntRange(1, MOST_RANKS),
        metavar="N",
        help="Grow to N ranks at most. Default: as -np; with --hosts-from no limit.",
    ),
    click.option(
        "--hosts-from",
        metavar="SCRIPT",
        help="Ask a script every second for the hosts that may be used now, which it prints as NAME or NAME:SLOTS.",
    ),
    click.option(
        "--spares",
        type=click.IntRange(0, MOST_SLOTS),
        metavar="K",
        help="Keep K processes on each host that have imported what the ranks have, to replace failed ones at once. "
        "Default: 0.",
    ),
    click.option(
        "--max-restarts",
        type=click.IntRange(0),
        metavar="N",
        help="Give up after more than N failures within --restart-window. Default: 10.",
    ),
    click.option(
        "--restart-window",
        type=click.FloatRange(0, min_open=True),
        metavar="S",
        help="Forget a failure after S seconds. Default: 3600.",
    ),
    click.option(
        "--reset-limit",
        type=click.IntRange(0),
        metavar="N",
        help="Give up after more than N failures, however long ago. Default: --max-restarts counts.",
    ),
    click.option(
        "--cooldown",
        metavar="S[,MOST]",
        help="Bar a slot or a host that fails again and again for S seconds, then for twice as long each time, and for "
        "MOST at most. Default: 10,3600.",
    ),
    click.option(
        "--elastic-timeout",
        type=click.FloatRange(0, min_open=True),
        metavar="S",
        help="Wait S seconds for --min-np ranks. Default: 600.",
    ),
)
_IMPLYING = (
    "min_np",
    "max_np",
    "hosts_from",
    "spares",
    "max_restarts",
    "restart_window",
    "reset_limit",
    "cooldown",
    "elastic_timeout",
)


def is_elastic(options: Mapping[str, Any]) -> bool:
    """Whether the options ask for an elastic job. A value of 0, as in `--max-restarts 0`, does not."""
    return options["elastic"] or any(options[name] not in (None, 0) for name in _IMPLYING)
