"""The command-line options for observing a running job, and the observers that they create."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from distrun.errors import UsageError
from distrun.runner.observation.timeline.options import TIMELINE_OPTIONS
from distrun.runner.output.sinks import is_own
from distrun.runner.system.click_options import POSITIVE, option

if TYPE_CHECKING:
    from distrun.runner.observation.consumer import Consumer
    from distrun.runner.output.panel import Panel
    from distrun.runner.planning.plan import LaunchPlan

Observer = Callable[["LaunchPlan", Callable[[str], None]], "Consumer"]


OBSERVATION_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    *TIMELINE_OPTIONS,
    option(
        "--live",
        "Show while the job runs how fast each rank is, what it does with its time and for whom it waits: below "
        "the output in a terminal, else as a line every 30 s.",
    ),
    option(
        "--report FILE",
        "Write a page of HTML at the end of the job, however it ends: where its time went, rank by rank, what "
        "held it up, and how well it scales.",
    ),
    option(
        "--single-rank-step S",
        "Seconds that a step takes on one rank alone, against which --report gives the scaling efficiency. "
        "Default: what the ranks compute in this job.",
        POSITIVE,
    ),
    option(
        "--metrics [ADDRESS]:PORT",
        "Give the metrics of the running job to Prometheus, at http://127.0.0.1:PORT/metrics, or at another "
        "address of this machine, as in 0.0.0.0:9090.",
    ),
    option(
        "--scalars",
        "Have rank 0 write every 10 s how fast it steps and what it does with its time, to TensorBoard and MLflow "
        "where the script writes there.",
    ),
)


def observers(options: Mapping[str, Any], panel: Panel | None = None) -> tuple[Observer, ...]:
    """Return the observers that the options of a command line ask for. See `JobOptions.observers`.

    Args:
        options: the options of the command line.
        panel: the panel that `live_panel` has returned.

    Raises:
        UsageError: the value of an option cannot be used.
    """
    found: list[Observer] = []
    if options["live"]:
        found.append(lambda plan, say: _live_view(plan, say, panel))
    if options["report"] is not None:
        found.append(_report(options))
    elif options["single_rank_step"] is not None:
        raise UsageError("--single-rank-step is for the report: give --report FILE.html, too, or leave it out")
    if options["metrics"] is not None:
        found.append(_metrics(options["metrics"]))
    return tuple(found)


def live_panel(options: Mapping[str, Any]) -> Panel | None:
    """Return the live view's panel on the terminal of stderr or stdout, or None without `--live` or a terminal."""
    if not options["live"] or os.environ.get("TERM", "dumb") == "dumb":
        return None
    shown = [descriptor for descriptor, stream in ((2, sys.stderr), (1, sys.stdout)) if is_own(stream)]
    terminal = next((descriptor for descriptor in shown if os.isatty(descriptor)), None)
    if terminal is None:
        return None
    from distrun.runner.output.panel import Panel

    return Panel(terminal)


def _live_view(plan: LaunchPlan, say: Callable[[str], None], panel: Panel | None) -> Consumer:
    from distrun.runner.observation.live.view import LiveView

    if plan.by_mpirun:
        say("--live shows nothing of ranks that mpirun starts; leave out --launcher mpirun to see them")
    return LiveView(plan, say, panel)


def _report(options: Mapping[str, Any]) -> Observer:
    from pathlib import Path

    from distrun.runner.observation.report.consumer import Report, check_path

    path = check_path(Path(options["report"]))
    return lambda plan, say: Report(path, plan, say, options["single_rank_step"])


def _metrics(text: str) -> Observer:
    from distrun.runner.observation.metrics.consumer import Metrics
    from distrun.runner.observation.metrics.server import Server, parse_address

    server = Server(*parse_address(text))
    return lambda plan, say: Metrics(server, plan, say)
