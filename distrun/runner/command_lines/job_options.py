"""Converts the options of a launch to the options of its job, which concern only the launcher's process."""

from __future__ import annotations

from typing import Any

from distrun.errors import UsageError
from distrun.runner.hosts.options import ssh_options
from distrun.runner.job.options import JobOptions
from distrun.runner.observation.options import live_panel, observers
from distrun.runner.observation.timeline.options import timeline_observers
from distrun.runner.output.hidden import hidden_streams
from distrun.runner.output.printer import Style
from distrun.runner.planning.placement import parse_ranks
from distrun.runner.planning.plan import LaunchPlan
from distrun.runner.planning.prepare import chosen_settings
from distrun.runner.planning.request import LaunchRequest
from distrun.runner.shipping.options import delivery

_MOST_HIDDEN = 1 << 16  # ranks that --redirect applies to


def job_options(options: dict[str, Any], request: LaunchRequest, plan: LaunchPlan, most: int) -> JobOptions:
    """Return the options of the job, which concern only this process. The job has at `most` this many ranks.

    Raises:
        UsageError: an option names impossible ranks, or lacks another option that it needs.
    """
    settings = chosen_settings(request)
    panel = live_panel(options)
    return JobOptions(
        grace=options["grace"],
        start_timeout=settings.start_timeout,
        style=Style(
            request.tag_output and not plan.by_mpirun,
            shown_ranks(request, most),
            timestamps=options["timestamps"],
            prompts=request.stdin is not None,
            hidden=_hidden_streams(options, plan, most),
            first_server=plan.size if request.servers else None,
        ),
        output_dir=None if plan.by_mpirun else request.output_dir,  # mpirun itself writes tags and files
        stdin=request.stdin,
        verbose=options["verbose"],
        timeout=options["timeout"],
        notes=not options["quiet"],
        bindings=request.report_bindings and not plan.by_mpirun,
        ssh=ssh_options(options, keepalive=settings.keepalive),
        delivery=delivery(options, plan.is_elastic),
        observers=(*timeline_observers(request, settings), *observers(options, panel)),
        panel=panel,
    )


def shown_ranks(request: LaunchRequest, most: int) -> frozenset[int] | None:
    """Return the ranks whose output is shown, of at most `most` ranks. None = all.

    Raises:
        UsageError: --rank-filter is not a list of such ranks.
    """
    return None if request.rank_filter is None else parse_ranks(request.rank_filter, most)


def _hidden_streams(options: dict[str, Any], plan: LaunchPlan, most: int) -> frozenset[tuple[int, str]]:
    if options["redirect"] is not None and options["output_dir"] is None:
        raise UsageError(f"--redirect {options['redirect']} needs --output-dir DIR, which keeps what is not shown")
    # Ranks that an elastic job may add later have no local rank yet.
    local_ranks = dict.fromkeys(range(plan.size, min(most, _MOST_HIDDEN)), -1)
    local_ranks |= {rank.rank: rank.local_rank for part in plan.agents for rank in part.ranks}
    return hidden_streams(local_ranks, options["redirect"], options["local_rank_filter"])
