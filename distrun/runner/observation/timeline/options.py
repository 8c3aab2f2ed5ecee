"""The options of a timeline, and the observer that they create."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from distrun.contract.settings import (
    TIMELINE,
    TIMELINE_LIMIT,
    TIMELINE_MARK_CYCLES,
    TIMELINE_OPERATIONS,
    TIMELINE_STEPS,
)
from distrun.errors import UsageError
from distrun.runner.system.click_options import option
from distrun.tracing.timeline.options import DEFAULT_LIMIT, check_file, parse_limit, parse_steps

if TYPE_CHECKING:
    from distrun.contract.settings import Settings
    from distrun.runner.observation.consumer import Consumer
    from distrun.runner.planning.plan import LaunchPlan
    from distrun.runner.planning.request import LaunchRequest

TIMELINE_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    option(
        "--timeline FILE",
        "Write what all ranks do when to a file that ui.perfetto.dev opens, compressed if its name ends in .gz.",
    ),
    option(
        "--timeline-steps FIRST:LAST",
        "Show these steps of the training in the timeline only, counted from 1. Default: all.",
    ),
    option("--timeline-operations", "Give each operation a row of its own in the timeline."),
    option(
        "--timeline-limit MB",
        f"Keep the timeline below MB megabytes by leaving out most seconds of a long job. Default: {DEFAULT_LIMIT}.",
    ),
    option("--timeline-mark-cycles", "Mark in the timeline when decisions of the coordinator arrive."),
)


def timeline_variables(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of a command line as variables of settings.

    Raises:
        UsageError: a value is not valid.
    """
    steps, limit = options["timeline_steps"], options["timeline_limit"]
    if steps is not None:
        parse_steps("--timeline-steps ", steps)
    if limit is not None:
        parse_limit("--timeline-limit ", limit)
    if options["timeline"] == "":
        raise UsageError("--timeline '' is no file: give its name")
    shaping = {
        f"--timeline-steps {steps}": steps,
        f"--timeline-limit {limit}": limit,
        "--timeline-operations": options["timeline_operations"],
    }
    asked = {*os.environ, *(name.partition("=")[0] for name in options["exports"])} & {TIMELINE, "HOROVOD_TIMELINE"}
    if options["timeline"] is None and not asked and (useless := [word for word, value in shaping.items() if value]):
        raise UsageError(f"{useless[0]} is about the timeline, and none is written: give --timeline FILE too")
    given = {
        TIMELINE: options["timeline"] and os.path.abspath(options["timeline"]),
        TIMELINE_STEPS: steps,
        TIMELINE_LIMIT: limit,
        TIMELINE_OPERATIONS: "1" if options["timeline_operations"] else None,
        TIMELINE_MARK_CYCLES: "1" if options["timeline_mark_cycles"] else None,
    }
    return {name: value for name, value in given.items() if value is not None}


def timeline_observers(
    request: LaunchRequest, settings: Settings
) -> tuple[Callable[[LaunchPlan, Callable[[str], None]], Consumer], ...]:
    """Return the observer that writes the timeline, if `settings` ask for one and the launcher writes it.

    Raises:
        UsageError: the file cannot be written.
    """
    if not (settings.timeline and request.writes_timeline):
        return ()
    options = settings.timeline_options()
    check_file("--timeline " if request.timeline else f"{TIMELINE}=", options.file)

    def observer(plan: LaunchPlan, say: Callable[[str], None]) -> Consumer:
        from distrun.runner.observation.profiling.profiler import Profiler
        from distrun.runner.observation.timeline.consumer import TimelineConsumer

        return TimelineConsumer(options, Profiler(None if plan.is_elastic else plan.size, settings.wire_dtype))

    return (observer,)
