"""The actions of a sweep, as plain data, besides those that jobs have too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from distrun.contract.elastic.messages import Verdict
from distrun.runner.decisions.actions import CleanUpAfter, FinishAgents, KillAgents
from distrun.runner.decisions.elastic.actions import ConnectHosts, EndProcesses, Say
from distrun.tools.sweep.policy.trials import Trial


@dataclass(frozen=True)
class StartTrial:
    """Start or activate the processes of a trial's members."""

    trial: Trial


@dataclass(frozen=True)
class StartSpares:
    """Start processes that import what the script imports, and wait."""

    hosts: Mapping[int, str]
    """The host of each, by its number."""


@dataclass(frozen=True)
class Tell:
    """Tell processes of a trial whether it goes on."""

    processes: tuple[int, ...]
    verdict: Verdict


@dataclass(frozen=True)
class ReleaseProcesses:
    """End what dead processes have left behind, and forget them."""

    processes: tuple[int, ...]


@dataclass(frozen=True)
class TrialEnded:
    """Record the end of a trial and tell the user; it is waiting again if a host was lost."""

    trial: Trial


Action = (
    ConnectHosts
    | StartTrial
    | StartSpares
    | Tell
    | EndProcesses
    | ReleaseProcesses
    | TrialEnded
    | Say
    | CleanUpAfter
    | FinishAgents
    | KillAgents
)
