"""Connecting ranks that are all on one host."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from distrun.runtime.backends.group_factories import OneHostFactory
from distrun.runtime.backends.groups import Groups
from distrun.runtime.backends.shared_memory import SharedMemoryBackend
from distrun.runtime.engine.single_process import SingleProcessEngine
from distrun.runtime.transport.local_group import LocalGroup
from distrun.runtime.world.bootstrap.facts import AnyEngine, Facts, withdraw


def connect_on_one_host(facts: Facts) -> AnyEngine:
    """Connect with ranks that are all on this host. Returns the engine."""
    if facts.topology.size == 1:
        return SingleProcessEngine(facts.gpu_config())
    # Positions in the local group are ranks here, not local ranks, since MPI libraries number the two independently.
    with ExitStack() as undo:
        local_group = facts.join_local_group(facts.topology.rank, range(facts.topology.size), None)
        undo.push(partial(withdraw, local_group))
        groups, may_offer = _groups(facts, local_group), not facts.settings.stall_timeout
        engine = facts.start_engine(local_group, groups, facts.settings.fusion_threshold, may_offer)
        undo.pop_all()
    return engine


def _groups(facts: Facts, local_group: LocalGroup) -> Groups:
    facts.settings.check_backend(hosts=1)
    if facts.settings.backend != "mpi":
        backend = SharedMemoryBackend(local_group)
        return Groups(backend, OneHostFactory(local_group, backend))
    from distrun.runtime.backends.mpi import MPIBackend
    from distrun.runtime.transport.mpi.requests import Requests

    requests = Requests(local_group, local_group.own, local_group.size, "shared_memory")
    mpi = MPIBackend(local_group, requests)
    return Groups(mpi, OneHostFactory(local_group, mpi, requests))
