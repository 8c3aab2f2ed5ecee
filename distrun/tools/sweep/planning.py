"""Planning the processes of trials: each trial is its own world, with its key, its ports and its GPUs."""

from __future__ import annotations

import secrets
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from distrun.contract.elastic.variables import CPU_SLOT, TRIAL, TRIAL_PRUNES
from distrun.host.endpoints import PORTS
from distrun.host.gpus import VISIBLE
from distrun.runner.decisions.elastic.options import UNLIMITED, ElasticOptions
from distrun.runner.planning.elastic import ElasticPlanner
from distrun.runner.planning.hosts import Host
from distrun.runner.planning.plan import AgentPlan, RankPlan
from distrun.runner.planning.request import LaunchContext, LaunchRequest
from distrun.runner.planning.ssh_config import Route
from distrun.runner.planning.variables.ranks import RankLocation
from distrun.tools.sweep.policy.trials import Trial

_PER_SLOT = 4  # ports: two for other frameworks and two for the rendezvous, which successive trials use in turn


class TrialPlanner(ElasticPlanner):
    """Plans the agents and the trials of one sweep, whose hosts may come and go."""

    def __init__(
        self,
        request: LaunchRequest,
        context: LaunchContext,
        is_pruned: bool,
        free_port: Callable[[], int] | None = None,
    ) -> None:
        """Args: the request with the command of all trials, without values, and the rest as in `ElasticPlanner`."""
        super().__init__(request, context, ElasticOptions(1, 1, UNLIMITED), free_port)
        self._variables = replace(self._variables, elastic=False, max_restarts=0)
        self._is_pruned = is_pruned
        self._listed: dict[str, Host] = {}
        self._turns: Counter[tuple[str, int]] = Counter()  # the number of trials so far with rank 0 on a slot of a host

    def part(self, host: Host, route: Route | None) -> AgentPlan:
        """Return the part of the plan that the processes of a host share.

        Raises:
            UsageError: the host has too few GPUs.
        """
        self._listed[host.name] = host
        per_slot = 0 if PORTS in self._context.environ else _PER_SLOT
        python = sys.executable if self._request.command[0] == sys.executable else ""  # as `parse_words` puts it there
        return replace(super().part(host, route), ports=per_slot * (host.slots or 1), python=python)

    def trial(self, trial: Trial, command: Sequence[str]) -> list[RankPlan]:
        """Return the plans of the ranks of a trial, which has slots and processes, in the order of its members."""
        hosts = trial.hosts
        slots = {host: [member.slot for member in trial.members if member.host == host] for host in hosts}
        nodes = {host: node for node, host in enumerate(hosts)}
        # The ranks see their trial alone on the hosts: local ranks and slots count from 0, and so do the visible GPUs.
        places = [RankLocation(member.host, slots[member.host].index(member.slot)) for member in trial.members]
        master, rendezvous = self._ports(hosts[0], slots[hosts[0]][0])
        first = self._infos[hosts[0]]
        endpoint, defaults, _ = self._master_endpoint(
            hosts, master, replace(first, rendezvous=rendezvous or first.rendezvous)
        )
        variables = replace(self._variables, key=secrets.token_hex(32), restarts=trial.attempts - 1)
        made = []
        for member, contract in zip(trial.members, variables.contracts(places, endpoint), strict=True):
            host = member.host
            environ = {
                **variables.of(contract, nodes[host], len(hosts)),
                **self._gpus(host, slots[host]),
                TRIAL: str(trial.number),
                **({TRIAL_PRUNES: "1"} if self._is_pruned else {}),
                **({CPU_SLOT: str(member.slot)} if member.was_spare else {}),
            }
            place = RankLocation(host, member.slot)
            plan = self.process(member.process, place, environ, defaults.get(host, {}))
            made.append(replace(plan, command=list(command)))
        return made

    def _ports(self, host: str, slot: int) -> tuple[int, int]:
        """Return two ports on a host: for other frameworks, and for distrun's rendezvous (0: the agent reserves one).

        Trials that run at the same time differ in the slot of rank 0. Successive trials on a slot use different ports.
        """
        if self._free_port and host == self._here:
            return self._free_port(), self._free_port()
        ports = self._infos[host].ports
        if not ports:
            return self._infos[host].port, 0
        own = ports[_PER_SLOT * slot : _PER_SLOT * (slot + 1)]
        turn = self._turns[host, slot] % 2
        self._turns[host, slot] += 1
        return own[turn], own[2 + turn]

    def _gpus(self, host: str, slots: Sequence[int]) -> Mapping[str, str]:
        """Return the variable that makes only the GPUs of these slots visible, or nothing without GPUs."""
        names = self._listed[host].gpus or self._infos[host].gpus
        if not names or VISIBLE in self._variables.exports:
            return {}
        return {VISIBLE: ",".join(dict.fromkeys(names[slot % len(names)] for slot in slots))}
