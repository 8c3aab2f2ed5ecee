"""The command line of `distrun`: options in, a request out, and an error as one sentence."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import click

from distrun.errors import DistrunError, UsageError
from distrun.host.endpoints import format_endpoint
from distrun.runner.command_lines.elastic_options import is_elastic
from distrun.runner.command_lines.launch_options import launch_options
from distrun.runner.command_lines.own_options import are_all_own, own_options
from distrun.runner.connect.options import host_list, ssh_options
from distrun.runner.planning.hosts import Host
from distrun.runner.planning.placement import parse_ranks
from distrun.runner.planning.plan import LaunchPlan, describe
from distrun.runner.planning.request import LaunchRequest

if TYPE_CHECKING:
    from distrun.runner.command_lines.table import Translation
    from distrun.runner.job.options import JobOptions
    from distrun.runner.nodes.options import NodeOptions
    from distrun.runner.nodes.peers import Peers
    from distrun.runner.nodes.rendezvous import Place


_MOST_HIDDEN = 1 << 16  # ranks that --redirect concerns
_SETTINGS = {"allow_interspersed_args": False, "help_option_names": ["-h", "--help"], "max_content_width": 120}


@click.command(context_settings=_SETTINGS, options_metavar="[OPTIONS]")
@launch_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def distrun(**options: Any) -> int:
    """Start COMMAND once per rank and wait until all ranks are done: distrun -np 2 python train.py

    Everything from the first word that is not an option belongs to the command. The exit status is that of the first
    rank that fails. 'distrun doctor -H a,b' examines hosts and the network between them; see distrun doctor --help.
    """
    if options["version"]:
        from distrun import __version__

        click.echo(f"distrun {__version__}")
        return 0
    if options["check_build"]:
        from distrun.runner.doctor.build import report

        click.echo(report(verbose=options["verbose"]))
        return 0
    return _run(options)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Be the `distrun` command; the exit status is that of the job."""
    _open_standard_descriptors()
    sys.exit(_status(arguments))


def _open_standard_descriptors() -> None:
    """Open the descriptors 0, 1 and 2 if a daemon has started us without: no pipe of ours may get their numbers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _status(arguments: list[str] | None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if arguments[:1] == ["doctor"]:
            status = _doctor(arguments[1:])
        else:
            status = distrun.main(
                args=_with_own_options(distrun, "distrun", arguments), prog_name="distrun", standalone_mode=False
            )
    except click.ClickException as error:
        return complain(_sentence(error), 2)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except DistrunError as error:
        return complain(str(error), getattr(error, "status", 2 if isinstance(error, UsageError) else 1))
    return int(status or 0)


def _doctor(arguments: list[str]) -> int:
    from distrun.runner.doctor.command import doctor

    name = "distrun doctor"
    return int(doctor.main(args=_with_own_options(doctor, name, arguments), prog_name=name, standalone_mode=False) or 0)


def _sentence(error: click.ClickException) -> str:
    """Return what is wrong with the command line, and where to read on or what was probably meant."""
    context = getattr(error, "ctx", None)
    remedy = f"see {context.command_path if context else 'distrun'} --help"
    if isinstance(error, click.NoSuchOption):
        meant = " or ".join(sorted(error.possibilities or ()))
        return f"there is no option {error.option_name}: {f'did you mean {meant}?' if meant else remedy}"
    return f"{error.format_message().rstrip('.')}; {remedy}"


def complain(sentence: str, status: int) -> int:
    """Print an error on one line, and return the status."""
    click.echo(f"distrun: error: {sentence}", err=True)
    return status


def _with_own_options(command: click.Command, name: str, arguments: list[str]) -> list[str]:
    """Return the arguments of a command with our options in the place of other launchers' flags."""
    own = own_options(command)
    if are_all_own(own, arguments):
        return arguments
    from distrun.runner.command_lines.borrowed import translated

    translation = translated(own, arguments, name)
    tell_ignored(translation)
    return translation.arguments


def tell_ignored(translation: Translation) -> None:
    """Print which flags of another launcher were ignored, if any, and why."""
    if (told := translation.told()) and not {"-q", "--quiet"} & set(translation.options):
        click.echo(f"distrun: {told}", err=True)


_OF_NODES = ("nnodes", "nproc_per_node", "node_rank", "rdzv_endpoint", "rdzv_conf")


def _nodes(options: dict[str, Any]) -> NodeOptions | None:
    """Return what the options say of nodes; None if they do not speak of them, as in nearly all launches."""
    if all(options[name] is None for name in _OF_NODES):
        return None
    from distrun.runner.nodes.options import node_options

    return node_options(options, os.environ)


def _run(options: dict[str, Any]) -> int:
    nodes = _nodes(options)
    if nodes is not None and nodes.place is not None:
        if is_elastic(options):
            raise UsageError(
                f"--nnodes {options['nnodes']} starts a launcher on each node, which cannot be elastic: start one "
                "launcher for all hosts, with -H or --hosts-from"
            )
        return _run_node(options, nodes.ranks, nodes.place, nodes.number)

    from distrun.runner.planning.prepare import chosen_settings, prepare

    request = _request(options)
    if nodes is not None:
        request = replace(request, hosts=(Host("localhost", nodes.ranks),), nodes=1)
    if is_elastic(options):
        return _run_elastic(options, request)
    plan = prepare(request, options["grace"], ssh_options(options, keepalive=chosen_settings(request).keepalive))
    if options["dry_run"]:
        _shown_ranks(request, plan.size)
        click.echo(describe(plan, os.environ))
        return 0
    return _execute(options, request, plan)


def _run_elastic(options: dict[str, Any], request: LaunchRequest) -> int:
    from distrun.runner.elastic.job import ElasticJob
    from distrun.runner.elastic.preparation import ElasticRequest, prepare_elastic
    from distrun.runner.output.sinks import DescriptorSink
    from distrun.runner.planning.prepare import chosen_settings

    ssh = ssh_options(options, keepalive=chosen_settings(request).keepalive)
    plan = prepare_elastic(request, ElasticRequest.of(options), options["grace"], ssh)
    if options["dry_run"]:
        click.echo(plan.describe(os.environ))
        return 0
    job_options = _job_options(options, request, plan.first, plan.options.max_np)
    return ElasticJob(plan, job_options, DescriptorSink(1), DescriptorSink(2)).run().status


def _run_node(options: dict[str, Any], ranks: int, place: Place, number: int | None) -> int:
    """Run this node's part of a job that has a launcher on every node."""
    from distrun.runner.nodes.launch import launch

    request = _request(options)
    if options["dry_run"]:
        click.echo(f"{place.size} nodes meet at {format_endpoint(*place.endpoint)}; ranks on this one: {ranks}")
        return 0
    launched = launch(
        request, options["grace"], place, ranks, number, lambda text: click.echo(f"distrun: {text}", err=True)
    )
    try:
        return _execute(options, request, launched.plan, launched.peers)
    finally:
        launched.close()


def _execute(options: dict[str, Any], request: LaunchRequest, plan: LaunchPlan, peers: Peers | None = None) -> int:
    from distrun.runner.job.job import Job
    from distrun.runner.output.sinks import DescriptorSink

    job_options = _job_options(options, request, plan, plan.size)
    return Job(plan, job_options, DescriptorSink(1), DescriptorSink(2), peers=peers).run().status


def _job_options(options: dict[str, Any], request: LaunchRequest, plan: LaunchPlan, most: int) -> JobOptions:
    """Return the options that concern this process only; `most` is the number of ranks that there may come to be."""
    from distrun.runner.job.options import JobOptions
    from distrun.runner.output.printer import Style
    from distrun.runner.planning.prepare import chosen_settings

    settings = chosen_settings(request)
    return JobOptions(
        grace=options["grace"],
        start_timeout=settings.start_timeout,
        style=Style(
            request.tag_output and not plan.by_mpirun,
            _shown_ranks(request, most),
            timestamps=options["timestamps"],
            prompts=request.stdin is not None,
            hidden=_hidden_streams(options, plan, most),
        ),
        output_dir=None if plan.by_mpirun else request.output_dir,  # mpirun itself writes tags and files
        stdin=request.stdin,
        verbose=options["verbose"],
        timeout=options["timeout"],
        notes=not options["quiet"],
        bindings=request.report_bindings and not plan.by_mpirun,
        ssh=ssh_options(options, keepalive=settings.keepalive),
    )


def _shown_ranks(request: LaunchRequest, most: int) -> frozenset[int] | None:
    return None if request.rank_filter is None else parse_ranks(request.rank_filter, most)


def _hidden_streams(options: dict[str, Any], plan: LaunchPlan, most: int) -> frozenset[tuple[int, str]]:
    from distrun.runner.output.hidden import hidden_streams

    if options["redirect"] is not None and options["output_dir"] is None:
        raise UsageError(f"--redirect {options['redirect']} needs --output-dir DIR, which keeps what is not shown")
    # Ranks that an elastic job may grow to have no local rank yet.
    local_ranks = dict.fromkeys(range(plan.size, min(most, _MOST_HIDDEN)), -1)
    local_ranks |= {rank.rank: rank.local_rank for part in plan.agents for rank in part.ranks}
    return hidden_streams(local_ranks, options["redirect"], options["local_rank_filter"])


def _request(options: dict[str, Any]) -> LaunchRequest:
    if not options["command"]:
        raise UsageError(
            "there is no command to start: give one after the options, as in distrun -np 2 python train.py"
        )
    return LaunchRequest(
        command=options["command"],
        np=options["np"],
        hosts=tuple(host_list(options)),
        exports=options["exports"],
        wdir=options["wdir"],
        openmpi_env=options["openmpi_env"],
        torchrun_env=options["torchrun_env"],
        name=options["rdzv_id"] or "none",
        slots=options["slots"],
        ranks_per_host=options["ranks_per_host"],
        oversubscribe=options["oversubscribe"],
        map_by=options["map_by"],
        bind_to=options["bind_to"],
        report_bindings=options["report_bindings"],
        share_gpus=options["share_gpus"],
        stdin=_stdin_rank(options["stdin"]),
        stall_warning=options["stall_warning"],
        stall_timeout=options["stall_timeout"],
        start_timeout=options["start_timeout"],
        keepalive=options["keepalive"],
        encrypt=options["encrypt"],
        network=options["network"],
        wire_dtype=options["wire_dtype"],
        launcher=options["launcher"],
        mpi_args=options["mpi_args"],
        tf_config=options["tf_config"],
        ps=options["ps"],
        tag_output=options["tag_output"],
        output_dir=options["output_dir"],
        rank_filter=options["rank_filter"],
        horovod=options["horovod"],
    )


def _stdin_rank(text: str) -> int | None:
    if text == "none":
        return None
    if not (text.isascii() and text.isdecimal()):
        raise UsageError(f"--stdin {text!r} is not understood: allowed are none and the number of a rank")
    return int(text)
