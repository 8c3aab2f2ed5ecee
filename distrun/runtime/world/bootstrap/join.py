"""Joining the job that this process was started in."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from distrun.contract import horovod
from distrun.contract.elastic.interruption import Either, Interruption
from distrun.contract.launch import LaunchContract
from distrun.contract.settings import Settings, unknown
from distrun.contract.topology import Topology
from distrun.errors import UsageError
from distrun.runtime.world import devices, environments
from distrun.runtime.world.bootstrap.across_hosts import connect_across_hosts
from distrun.runtime.world.bootstrap.facts import AnyEngine, Facts, RendezvousRound
from distrun.runtime.world.bootstrap.one_host import connect_on_one_host
from distrun.runtime.world.devices import Device
from distrun.runtime.world.environments import Environment

log = logging.getLogger("distrun")


@dataclass(frozen=True)
class World:
    """An initialised world."""

    topology: Topology
    device: Device
    engine: AnyEngine
    generation: int = 1
    """The number of the world in the job. See `LaunchContract.generation`."""


def place_in_job(environ: Mapping[str, str] = os.environ) -> Topology:
    """Return this process's place in the job that it was started in, whether or not it has joined it."""
    return environments.detect(environ).topology()


def join(
    environ: Mapping[str, str],
    inits: int,
    ranks: Sequence[int] | None = None,
    interruption: Interruption | None = None,
    departure: Interruption | None = None,
) -> World:
    """Join the job that this process was started in. Returns when all ranks have joined.

    Args:
        environ: the variables from the launcher and the user.
        inits: the number of the world among the worlds of this process in this generation, from 1. Ranks with different
            numbers do not find each other, so a rank that is one world ahead does not join an older one.
        ranks: the job's ranks that form the world, in the order of their new ranks. None: all.
        interruption: ends the wait for the other ranks early, and later the world.
        departure: ends only the wait for the other ranks. It is used where all ranks of the job form the world.

    Raises:
        UsageError: a variable has an impossible value.
        BootstrapError: the other ranks did not come within the start timeout, were not the expected ones, or the wait
            was interrupted.
        JobAbortedError: a rank joined, and ended before all had joined.
    """
    settings = Settings.of(environ)
    environment = environments.detect(environ)
    topology = environment.topology()
    rendezvous_round = RendezvousRound(environment.generation(), inits)
    if ranks is not None:
        return _join_some(environ, environment, settings, rendezvous_round, tuple(ranks), interruption)
    if topology.rank == 0 and inits == 1 and not LaunchContract.is_present(environ):  # else the launcher has warned
        for sentence in [*unknown(environ), *horovod.without_effect(environ)]:
            log.warning("%s", sentence)
    device = devices.bind(topology, environ, settings.share_gpus, environment.slot())
    ends_rendezvous = Either(interruption, departure) if interruption and departure else interruption or departure
    facts = Facts(environment, topology, device, settings, rendezvous_round, interruption, ends_rendezvous)
    if topology.size <= topology.local_size:
        return World(topology, device, connect_on_one_host(facts), rendezvous_round.generation)
    engine, (cross_rank, cross_size) = connect_across_hosts(facts)
    topology = replace(topology, cross_rank=cross_rank, cross_size=cross_size)
    return World(topology, device, engine, rendezvous_round.generation)


def _join_some(
    environ: Mapping[str, str],
    environment: Environment,
    settings: Settings,
    rendezvous_round: RendezvousRound,
    ranks: tuple[int, ...],
    interruption: Interruption | None,
) -> World:
    """Join a world of some of the job's ranks, all of which are on one host."""
    job = environment.topology()
    if job.rank not in ranks or len(set(ranks)) < len(ranks) or not all(0 <= rank < job.size for rank in ranks):
        raise UsageError(
            f"comm={list(ranks)} on rank {job.rank} of {job.size}: give ranks of the job, each once and this one among "
            "them; ranks that are left out call init with a list of their own, or not at all"
        )
    if job.local_size < job.size:
        raise UsageError(
            f"comm={list(ranks)}: only in a job on one host can some of the ranks be a world of their own; use "
            "init(process_sets=[...])"
        )
    place, size = ranks.index(job.rank), len(ranks)
    topology = Topology(place, size, place, size, 0, 1, job.hostname)
    device = devices.bind(job, environ, settings.share_gpus, environment.slot())
    facts = Facts(environment, topology, device, settings, rendezvous_round, interruption, interruption, ranks)
    return World(topology, device, connect_on_one_host(facts), rendezvous_round.generation)
