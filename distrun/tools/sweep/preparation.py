"""Turning the options of `distrun sweep` into a plan that this machine can execute."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from distrun.errors import UsageError
from distrun.host.endpoints import free_port
from distrun.host.ranks import count
from distrun.runner.elastic.host_list import HostList
from distrun.runner.hosts.options import host_list, ssh_options
from distrun.runner.planning import python_command
from distrun.runner.planning.hosts import Host
from distrun.runner.planning.plan import AgentPlan
from distrun.runner.planning.planner import make_plan, placed_ranks
from distrun.runner.planning.prepare import (
    Resolved,
    check_plan,
    chosen_settings,
    launch_context,
    resolve,
    resolve_hosts,
)
from distrun.runner.planning.request import LaunchContext, LaunchRequest
from distrun.runner.planning.ssh_config import SshOptions
from distrun.tools.sweep.output import Metric
from distrun.tools.sweep.plan import SweepPlan
from distrun.tools.sweep.planning import TrialPlanner
from distrun.tools.sweep.policy.halving import Halving
from distrun.tools.sweep.policy.policy import Limits
from distrun.tools.sweep.policy.trials import Trial
from distrun.tools.sweep.policy.upcoming import Source
from distrun.tools.sweep.results.record import Earlier, Header, Record, is_there, read
from distrun.tools.sweep.search.listed import Listed, grid, size_in_words
from distrun.tools.sweep.search.optuna_search import OptunaSearch
from distrun.tools.sweep.space.command_line import Template, parse_words
from distrun.tools.sweep.space.imports import first_imports
from distrun.tools.sweep.space.ranges import Choices

_DEFAULT_TRIALS = 50


def prepare_sweep(options: Mapping[str, Any]) -> SweepPlan:
    """Check the options, and return the plan.

    Raises:
        UsageError: they cannot be executed.
    """
    earlier = None if options["resume"] is None else read(options["resume"])
    header = _with_choices(_header(options, earlier), options, earlier)
    metric = _metric(header)
    template = header.template
    resolved, ssh, start_timeout = _resolved(options, template)
    request, context = resolved.request, launch_context(resolved.routes)
    hosts, slots = _hosts(request, context, header.ranks)
    first = replace(make_plan(request, context, options["grace"]), launcher=resolved.launcher)
    first = check_plan(request, first, resolved.notes, needs_script=False)
    split = partial(python_command.split, path=context.environ.get("PATH"), wdir=request.wdir or context.cwd)
    parts = split(template.command({}))
    space = template.with_seeds(header.seeds) if header.seeds else template
    if parts is not None and not space.has_place_in(parts.program[0]):
        _check_script(parts, first.agents)
    spares = _spares(options, parts, header.ranks)
    source = _source(options, header, space, earlier)
    done = () if earlier is None else tuple(earlier.finished)
    listed = HostList(lambda more: resolve_hosts(more, resolved.launcher, ssh))
    return SweepPlan(
        first=replace(first, notes=(*first.notes, _size_note(header, space, source, slots))),
        planner=TrialPlanner(request, context, header.prune, free_port),
        hosts=listed,
        slots=listed.add_resolved(hosts, resolved.routes),
        template=space,
        limits=Limits(header.ranks, options["grace"], start_timeout, options["max_failures"], spares),
        minimizes=header.minimizes,
        source=source,
        halving=_halving(header, done) if header.prune else None,
        earlier=done,
        record=Record(_folder(options, earlier), header),
        metric=metric,
        ssh=ssh,
        split=split,
        modules=() if parts is None else tuple(first_imports(parts.program, request.wdir or context.cwd)),
    )


def _resolved(options: Mapping[str, Any], template: Template) -> tuple[Resolved, SshOptions, float]:
    """Return the request with its hosts, how they are reached, and the seconds that their agents have to start.

    Raises:
        UsageError: the hosts cannot be found out.
    """
    names = ("exports", "wdir", "slots", "share_gpus", "bind_to", "start_timeout", "keepalive", "network", "launcher")
    given = {name: options[name] for name in (*names, "horovod", "torch_backend", "torchrun_env", "openmpi_env")}
    request = LaunchRequest(template.words, hosts=tuple(host_list(options)), **given)
    settings = chosen_settings(request)
    ssh = ssh_options(options, keepalive=settings.keepalive)
    return resolve(request, ssh), ssh, settings.start_timeout


def _hosts(request: LaunchRequest, context: LaunchContext, ranks: int) -> tuple[list[Host], int]:
    """Return the hosts, with as many slots as ranks fit on them, and the number of their slots.

    Raises:
        UsageError: they have too few for a trial.
    """
    placed, _ = placed_ranks(request, context)
    slots = sum(fitting for _, fitting in placed)
    if ranks > slots:
        raise UsageError(
            f"-np {ranks} asks for more ranks per trial than the {count(slots, 'slot')} of all hosts: lower "
            "-np, or give hosts more slots"
        )
    return [replace(host, slots=fitting) for host, fitting in placed], slots


def _halving(header: Header, done: Sequence[Trial]) -> Halving:
    """Return the pruner, which knows the trials of an earlier run."""
    halving = Halving(header.minimizes, header.prune_factor, header.prune_after)
    for trial in done:
        for number, (_, value) in enumerate(trial.reports, start=1):
            halving.judge(trial.number, number, value)
    return halving


def _header(options: Mapping[str, Any], earlier: Earlier | None) -> Header:
    """Return the header of the sweep from the options, and from the earlier run where they leave something out."""
    if earlier is not None and not options["words"]:
        template = earlier.header.template
    else:
        template = parse_words(options["words"])
    header = Header(
        list(template.words),
        list(template.fixed),
        {name: str(values) for name, values in template.parameters.items()},
        "grid" if options["grid"] or not _varies(template) else "search",
        _minimizes(options) is not False,
        options["seeds"] or 0,
        options["np"] or 1,
    )
    if earlier is not None:
        header = _kept(header, options, earlier)
    if header.kind == "search" and header.seeds:
        raise UsageError(
            f"--seeds {header.seeds} repeats trials with other seeds, which a search does not: give --grid, too, or "
            "parameters with one value each as words of the command"
        )
    return header


def _minimizes(options: Mapping[str, Any]) -> bool | None:
    """Return whether small values are good, or None if the options do not specify it."""
    direction = options["direction"]
    if options["maximize"] and direction == "minimize":
        raise UsageError("--maximize and --direction minimize contradict each other: give one of them")
    if options["maximize"]:
        return False
    return None if direction is None else bool(direction == "minimize")


def _kept(header: Header, options: Mapping[str, Any], earlier: Earlier) -> Header:
    """Return the header of a resumed sweep, which keeps the earlier values where the options specify nothing.

    Raises:
        UsageError: the options ask for a different sweep.
    """
    before = earlier.header
    header = replace(
        header,
        kind="grid" if options["grid"] else before.kind,
        minimizes=before.minimizes if _minimizes(options) is None else header.minimizes,
        seeds=header.seeds or before.seeds,
        ranks=options["np"] or before.ranks,
    )
    if others := header.differences(before):
        raise UsageError(
            f"--resume {options['resume']!r} is a sweep of another {', and of another '.join(others)}: give the same, "
            "or none, or leave out --resume"
        )
    if options["output"] is not None and Path(options["output"]).resolve() != earlier.folder.resolve():
        raise UsageError(
            f"--output {options['output']!r} is another directory than --resume {options['resume']!r}, in which a "
            "sweep goes on: leave out --output"
        )
    return header


def _with_choices(header: Header, options: Mapping[str, Any], earlier: Earlier | None) -> Header:
    """Return a header with the settings that a resumed sweep keeps, unless the options change them."""
    before = header if earlier is None else earlier.header
    names = ("trials", "metric", "seed", "prune_after", "prune_factor")
    is_pruned = options["prune"] or before.prune
    for name in ("prune_after", "prune_factor"):
        if options[name] is not None and not is_pruned:
            raise UsageError(
                f"--{name.replace('_', '-')} {options[name]} has no effect without --prune: give that, too, or leave "
                "it out"
            )
    chosen = {name: getattr(before, name) if options[name] is None else options[name] for name in names}
    return replace(header, prune=is_pruned, **chosen)


def _varies(template: Template) -> bool:
    """Whether there is anything to search: a parameter with more than one value."""
    return any(not isinstance(values, Choices) or len(values.values) > 1 for values in template.parameters.values())


def _check_script(parts: python_command.PythonCommand, agents: Sequence[AgentPlan]) -> None:
    """Refuse a script that does not exist, before many trials fail. Only this machine is checked, not other hosts.

    Raises:
        UsageError: there are ranks on this machine, but the script does not exist there.
    """
    script = parts.program[0]
    for agent in agents:
        if not agent.remote and script.endswith(".py") and not os.path.exists(os.path.join(agent.wdir, script)):
            raise UsageError(f"there is no script {script!r} in {agent.wdir}: give the path of one")


def _source(options: Mapping[str, Any], header: Header, space: Template, earlier: Earlier | None) -> Source:
    """Return the source that chooses the values of trials."""
    done = [] if earlier is None else earlier.finished
    if header.kind == "grid":
        if options["seed"] is not None:
            raise UsageError(
                f"--seed {options['seed']} is that of a search, and has no effect without one: leave it out, or "
                "give it to the command behind --"
            )
        if header.trials is not None:
            raise UsageError(
                f"--trials {header.trials} has no effect without parameters to search: leave it out, or --grid"
            )
        return Listed(grid(space.parameters), [trial.values for trial in done])
    total = header.trials
    if total is None and options["timeout"] is None:
        total = _DEFAULT_TRIALS
    return OptunaSearch(
        space.parameters,
        total,
        header.minimizes,
        None if header.seed is None else header.seed + len(done),  # or it would repeat its earlier choices
        done,
        [] if earlier is None else earlier.unfinished,
    )


def _metric(header: Header) -> Metric | None:
    if header.metric is None:
        return None
    if not header.metric.strip():
        raise UsageError(
            f"--metric {header.metric!r} is no name: give the word in front of the number, as in --metric loss for "
            "loss=0.123"
        )
    return Metric(header.metric)


def _size_note(header: Header, space: Template, source: Source, slots: int) -> str:
    at_once = f"{count(slots // header.ranks, 'trial')} of {count(header.ranks, 'rank')} at once"
    if header.kind == "grid":
        hint = "" if _varies(space) else "; nothing varies: give a parameter, as in lr=log:1e-4..1e-1, or --seeds"
        return f"{size_in_words(space.parameters)}; {at_once}{hint}"
    if source.total is None:
        return f"trials until the time is over; {at_once}"
    return f"{count(source.total, 'trial')}; {at_once}"


def _spares(options: Mapping[str, Any], parts: python_command.PythonCommand | None, ranks: int) -> int:
    if parts is None:
        if options["spares"]:
            raise UsageError(f"--spares {options['spares']} needs a Python program as the command: leave it out")
        return 0
    return ranks if options["spares"] is None else int(options["spares"])


def _folder(options: Mapping[str, Any], earlier: Earlier | None) -> Path:
    if earlier is not None:
        return earlier.folder
    folder = Path(options["output"] or _unused(time.strftime("sweep-%Y-%m-%d-%H%M%S")))
    if is_there(folder):
        raise UsageError(
            f"--output {str(folder)!r} holds a sweep already: give another directory, or go on with that one by "
            f"--resume {folder}"
        )
    return folder


def _unused(name: str) -> str:
    """Return a file name that does not exist yet, because several sweeps may begin in the same second."""
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(name for name in names if not os.path.lexists(name))
