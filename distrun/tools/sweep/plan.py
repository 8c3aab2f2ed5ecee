"""The plan of a sweep: everything that is decided before it begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from distrun.runner.elastic.host_list import HostList
from distrun.runner.planning.plan import LaunchPlan
from distrun.runner.planning.python_command import PythonCommand
from distrun.runner.planning.ssh_config import SshOptions
from distrun.tools.sweep.output import Metric
from distrun.tools.sweep.planning import TrialPlanner
from distrun.tools.sweep.policy.halving import Halving
from distrun.tools.sweep.policy.policy import Limits
from distrun.tools.sweep.policy.trials import Trial
from distrun.tools.sweep.policy.upcoming import Source
from distrun.tools.sweep.results.record import Record
from distrun.tools.sweep.space.command_line import Template


@dataclass(frozen=True)
class SweepPlan:
    """A sweep that can be started."""

    first: LaunchPlan
    """The plan as for one job: the job's name, notes, and how other hosts are reached."""
    planner: TrialPlanner
    hosts: HostList
    slots: dict[str, int]
    template: Template
    limits: Limits
    minimizes: bool
    source: Source
    halving: Halving | None
    """Prunes trials. None = no trial is pruned."""
    earlier: tuple[Trial, ...]
    """The trials that an earlier run of the sweep has finished."""
    record: Record
    metric: Metric | None
    ssh: SshOptions
    split: Callable[[Sequence[str]], PythonCommand | None]
    """Splits a command into interpreter and program. Returns None if it is not a Python program."""
    modules: tuple[str, ...]
    """The modules that spares import."""
