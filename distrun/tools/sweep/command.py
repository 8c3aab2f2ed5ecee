"""The command line of `distrun sweep`."""

from __future__ import annotations

import os
from typing import Any

import click

from distrun.host.numerals import MOST_RANKS, MOST_SLOTS
from distrun.runner.command_lines.launch_options import some_launch_options, some_seconds
from distrun.runner.system.click_options import option

_SETTINGS = {"allow_interspersed_args": False, "help_option_names": ["-h", "--help"], "max_content_width": 120}
_OF_LAUNCHES = (
    *("hosts", "hostfile", "slots", "bind_to", "launcher", "share_gpus", "exports", "wdir", "ports", "python"),
    *("ssh_port", "ssh_identity_file", "ssh_options", "ssh_accept_new", "keepalive", "network", "start_timeout"),
    *("ships", "ship_limit", "bootstrap", "no_bootstrap", "grace", "openmpi_env", "horovod", "torch_backend"),
    *("torchrun_env", "verbose"),
)


@click.command(context_settings=_SETTINGS, options_metavar="[OPTIONS]")
@option("-np --num-proc np K", "Ranks of each trial. Default: 1.", click.IntRange(1, MOST_RANKS))
@option("--trials N", "Trials in all. Default: 50, or no end with --timeout.", click.IntRange(1))
@option("--grid", "Try all combinations of the values, instead of searching.")
@option(
    "--seeds N",
    "Run each point of a grid, or the mere command, with --seed=0 to N-1, and tell mean and standard deviation.",
    click.IntRange(1, 1 << 20),
)
@option("--metric NAME", "Read the value that a trial prints last after NAME, if it reports none.")
@option(
    "--direction", "Whether small or large values are good. Default: minimize.", click.Choice(["minimize", "maximize"])
)
@option("--maximize", "The same as --direction maximize.")
@option("--prune", "End trials early that do badly, by what they report: asynchronous successive halving.")
@option("--prune-after N", "Reports after which a trial is compared for the first time. Default: 2.", click.IntRange(1))
@option(
    "--prune-factor N",
    "One of N trials goes on at each comparison, and the next is after N times as many reports. Default: 3.",
    click.IntRange(2),
)
@option("--seed N", "Seed of the search, which makes its choices the same each time.", int)
@option("--output DIR", "Directory for the results and the output of trials. Default: sweep-DATE-TIME.")
@option("--resume DIR", "Go on with the sweep of that directory; trials that were complete stay so.")
@option(
    "--max-failures N",
    "End after more than N failed trials. Default: go on, unless the first three fail alike.",
    click.IntRange(0),
)
@option(
    "--spares K",
    "Keep K processes on each host that have imported what the script imports first, for the next trial. Default: "
    "as -np for Python scripts.",
    click.IntRange(0, MOST_SLOTS),
)
@option("--timeout S", "End the sweep after S seconds, with the results so far. Default: never.", some_seconds)
@option("-q --quiet", "Leave out notes, the table and trials that end.")
@some_launch_options(_OF_LAUNCHES)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def sweep(**options: Any) -> int:
    """Try COMMAND with many values of its parameters: distrun sweep --trials 20 train.py lr=log:1e-4..1e-1 width=16|32

    A word NAME=RANGE is a parameter: LOW..HIGH, log:LOW..HIGH, LOW..HIGH/STEP, or choices A|B|C. Its value is given to
    the command as --NAME=VALUE, or in the place of {NAME}. Words behind -- are taken as they are. Trials run side by
    side on the slots of all hosts. The exit status is 0 if any trial came to its end.
    """
    from distrun.errors import UsageError
    from distrun.runner.job.options import JobOptions
    from distrun.runner.output.sinks import DescriptorSink
    from distrun.runner.shipping.options import check_shipping, delivery
    from distrun.tools.sweep.preparation import prepare_sweep
    from distrun.tools.sweep.results import table
    from distrun.tools.sweep.sweep import Sweep

    if options["launcher"] == "mpirun":
        raise UsageError("--launcher mpirun starts whole jobs and no single trials: leave it out")
    options |= {"nnodes": None, "rdzv_endpoint": None}
    check_shipping(options)
    plan = prepare_sweep(options)
    panel = None if options["quiet"] else _panel()

    def make_view(say: Any, now: float) -> table.View:
        if options["quiet"]:
            return table.View()
        if panel is not None:
            return table.Screen(panel, plan.minimizes, plan.source.total, now)
        return table.PlainTable(say, plan.minimizes, plan.source.total, now)

    chosen = JobOptions(
        grace=options["grace"],
        start_timeout=plan.limits.start_timeout,
        verbose=options["verbose"],
        timeout=options["timeout"],
        notes=not options["quiet"],
        ssh=plan.ssh,
        delivery=delivery(options, hosts_may_come=True),
        panel=panel,
    )
    return Sweep(plan, chosen, DescriptorSink(1), DescriptorSink(2), make_view).run()


def _panel() -> Any:
    """Return the panel for the table, or None if stderr is not a terminal."""
    if os.environ.get("TERM", "dumb") == "dumb" or not os.isatty(2):
        return None
    from distrun.runner.output.panel import Panel

    return Panel(2)
