"""The actions of a sweep, as plain data. Elastic jobs have some of them, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from distrun.contract.elastic.messages import Verdict
from distrun.runner.decisions.actions import CleanUpAfter, FinishAgents, KillAgents
from distrun.runner.decisions.elastic.actions import ConnectHosts, EndProcesses, Say
from distrun.tools.sweep.policy.trials import Trial


@dataclass(frozen=True)
class StartTrial:
    """Action: start or activate the processes of a trial's members."""

    trial: Trial


@dataclass(frozen=True)
class StartSpares:
    """Action: start processes that import what the script imports, and then wait."""

    hosts: Mapping[int, str]
    """process -> host"""


@dataclass(frozen=True)
class Tell:
    """Action: send processes of a trial the verdict whether it continues."""

    processes: tuple[int, ...]
    verdict: Verdict


@dataclass(frozen=True)
class ReleaseProcesses:
    """Action: end what dead processes have left behind, and forget them."""

    processes: tuple[int, ...]


@dataclass(frozen=True)
class TrialEnded:
    """Action: record the end of a trial and report it."""

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
