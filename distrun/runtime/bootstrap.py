"""The bootstrap: from the environment of a process to an engine that is connected with those of the other ranks.

A rank on one host meets the others on a Unix socket, maps their memory, and has a backend. Where there are several
hosts, all ranks meet at rank 0 first, which tells everybody who is where and which settings hold for all; then the
ranks of each host meet as on a single one, and each connects with the ranks of its rail.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from distrun.errors import BootstrapError, UsageError
from distrun.runtime import devices, environments, horovod
from distrun.runtime.backends.group_factories import AcrossHostsFactory, OneHostFactory
from distrun.runtime.backends.groups import Groups
from distrun.runtime.backends.hierarchical import HierarchicalBackend
from distrun.runtime.backends.shared_memory import SharedMemoryBackend
from distrun.runtime.contract import LaunchContract
from distrun.runtime.devices import Device
from distrun.runtime.devices.cuda import Cuda
from distrun.runtime.elastic.interruption import Interruption
from distrun.runtime.engine.engine import ProgressEngine
from distrun.runtime.engine.single_process import SingleProcessEngine
from distrun.runtime.engine.start import start_engine
from distrun.runtime.environments import Environment
from distrun.runtime.gpu.config import GpuConfig
from distrun.runtime.mpi import rendezvous as mpi_rendezvous
from distrun.runtime.negotiation.controller import Controller
from distrun.runtime.operations.timeouts import Timeouts
from distrun.runtime.rendezvous.across_hosts import rendezvous_across_hosts
from distrun.runtime.rendezvous.protocol import Rendezvous, RendezvousEndpoint
from distrun.runtime.rendezvous.within_host import rendezvous_within_host
from distrun.runtime.settings import Settings, unknown
from distrun.runtime.shared_memory.segment import FAILED
from distrun.runtime.topology import Topology
from distrun.runtime.transport.data_connections import DataConnections
from distrun.runtime.transport.host_layout import HostLayout
from distrun.runtime.transport.links import LinkMaker, Links
from distrun.runtime.transport.local_group import LocalGroup
from distrun.runtime.transport.network import Network

_WIRE_DTYPES = ("", "float16", "bfloat16")  # as rank 0 tells them: by index

log = logging.getLogger("distrun")

AnyEngine = ProgressEngine | SingleProcessEngine


@dataclass(frozen=True)
class World:
    """An initialised world."""

    topology: Topology
    device: Device
    engine: AnyEngine
    generation: int = 1
    """Which world of the job this is; see `LaunchContract.generation`."""


def place_in_job(environ: Mapping[str, str] = os.environ) -> Topology:
    """Return this process's place in the job that it was started in, whether it has joined it or not."""
    return environments.detect(environ).topology()


def join(
    environ: Mapping[str, str], inits: int, ranks: Sequence[int] | None = None, interruption: Interruption | None = None
) -> World:
    """Join the job that this process was started in; returns when all ranks have.

    Args:
        environ: the variables that the launcher and the user left.
        inits: counts the worlds of this process in this generation, from 1: a rank that is a world ahead of another
            must not meet it.
        ranks: those of the job's ranks that make up the world, in the order of their new ranks; None: all.
        interruption: what ends the wait for the others before its time.

    Raises:
        UsageError: a variable has an impossible value.
        BootstrapError: the other ranks did not come within the start timeout, were not who they should be, or the wait
            was interrupted.
        JobAbortedError: a rank came, and ended again.
    """
    settings = Settings.of(environ)
    environment = environments.detect(environ)
    topology = environment.topology()
    meeting = Meeting(environment.generation(), inits)
    if ranks is not None:
        return _join_some(environ, environment, settings, meeting, tuple(ranks), interruption)
    if topology.rank == 0 and inits == 1 and not LaunchContract.is_present(environ):  # else the launcher has told
        for sentence in [*unknown(environ), *horovod.without_effect(environ)]:
            log.warning("%s", sentence)
    device = devices.bind(topology, environ, settings.share_gpus, environment.slot())
    bootstrap = _Bootstrap(environment, topology, device, settings, meeting, interruption)
    if topology.size > topology.local_size:
        return bootstrap.across_hosts()
    return bootstrap.world_of(bootstrap.on_one_host())


def _join_some(
    environ: Mapping[str, str],
    environment: Environment,
    settings: Settings,
    meeting: Meeting,
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
    bootstrap = _Bootstrap(environment, topology, device, settings, meeting, interruption, ranks)
    return bootstrap.world_of(bootstrap.on_one_host())


@dataclass(frozen=True)
class Meeting:
    """Which of the job's meetings this is. Ranks of another one are strangers, even of the same job and at the same
    port."""

    generation: int
    inits: int

    def __str__(self) -> str:
        return f"{self.generation}.{self.inits}"


@dataclass(frozen=True)
class _Bootstrap:
    """The facts that are known before the ranks meet, and the steps from there."""

    environment: Environment
    topology: Topology
    device: Device
    settings: Settings
    meeting: Meeting
    interruption: Interruption | None
    ranks: tuple[int, ...] = ()
    """The job's ranks that make up the world, if not all do."""

    def world_of(self, engine: AnyEngine) -> World:
        """Return the world that an engine is for."""
        return World(self.topology, self.device, engine, self.meeting.generation)

    def on_one_host(self) -> AnyEngine:
        """Connect with ranks that are all on this host."""
        if self.topology.size == 1:
            return SingleProcessEngine(self.gpu_config())
        # Positions in the local group are ranks here, not local ranks: MPI libraries number the two independently.
        with ExitStack() as undo:
            local_group = self._local_group(self.topology.rank, range(self.topology.size), None)
            undo.push(partial(_withdraw, local_group))
            engine = self._engine(local_group, self._groups(local_group), self.settings.fusion_threshold)
            undo.pop_all()
        return engine

    def across_hosts(self) -> World:
        """Connect with ranks on several hosts."""
        rendezvous = self._rendezvous()
        mpi_rendezvous.release()
        deadline = time.monotonic() + self.settings.start_timeout
        with ExitStack() as undo:
            undo.callback(rendezvous.close)
            layout = HostLayout.of([member.host for member in rendezvous.members], self.topology.rank)
            self._check(layout)
            silence = self.settings.keepalive
            network = Network(layout.rank, rendezvous.members, rendezvous.control, rendezvous.alarms, silence)
            undo.callback(network.close)
            local_group = self._local_group(layout.position, layout.local_ranks, network)
            undo.push(partial(_withdraw, local_group))
            links, link_maker = self._links(rendezvous, layout, network, local_group, deadline)
            rendezvous.listener.close()
            agreed = rendezvous.agreed
            wire = _WIRE_DTYPES[agreed["wire_dtype"]]
            backend = HierarchicalBackend(local_group, layout, links, wire)
            groups = Groups(backend, AcrossHostsFactory(local_group, layout, backend, link_maker, wire))
            may_offer = bool(agreed["may_offer"])
            engine = self._engine(local_group, groups, agreed["fusion_threshold"], may_offer)
            undo.pop_all()
        cross_rank, cross_size = layout.cross()
        return replace(
            self.world_of(engine), topology=replace(self.topology, cross_rank=cross_rank, cross_size=cross_size)
        )

    def _rendezvous(self) -> Rendezvous:
        topology, settings = self.topology, self.settings
        return rendezvous_across_hosts(
            topology.rank,
            topology.size,
            f"{self.environment.job_name()} {socket.gethostname()}",
            topology.hostname,
            self._endpoint(),
            self._agreed(),
            settings.start_timeout,
            settings.network,
            self.interruption,
            settings.keepalive,
        )

    def _agreed(self) -> dict[str, int]:
        """Return what holds for all ranks if this is rank 0.

        Variables may not reach every host, and ranks that go by different values of these would not match.
        """
        return {
            "fusion_threshold": self.settings.fusion_threshold,
            "wire_dtype": _WIRE_DTYPES.index(self.settings.wire_dtype),
            "mpi": int(self._prefers_mpi()),
            "may_offer": int(not self.settings.stall_timeout),
        }

    def _prefers_mpi(self) -> bool:
        self.settings.check_backend(hosts=2)
        choice = self.settings.backend
        return choice == "mpi" or (choice == "auto" and self.environment.is_mpi and not self.settings.encrypt)

    def _endpoint(self) -> RendezvousEndpoint:
        endpoint = self.environment.endpoint()
        if endpoint is None:
            topology, settings = self.topology, self.settings
            endpoint = mpi_rendezvous.find(topology.rank, topology.size, settings.network, settings.start_timeout)
        return replace(_of_meeting(endpoint, self.meeting), is_encrypted=self.settings.encrypt)

    def _check(self, layout: HostLayout) -> None:
        if len(layout.local_ranks) != self.topology.local_size:
            raise BootstrapError(
                f"rank {layout.rank} was told that its host has {self.topology.local_size} ranks, but "
                f"{len(layout.local_ranks)} call it theirs ({self.topology.hostname}): give each host of the job its "
                "own name"
            )

    def _links(
        self,
        rendezvous: Rendezvous,
        layout: HostLayout,
        network: Network,
        local_group: LocalGroup,
        deadline: float,
    ) -> tuple[Links, LinkMaker]:
        """Return the links of the whole job, and what makes those of sets of ranks."""
        if rendezvous.agreed["mpi"]:  # rank 0's word: a launcher may not have passed the variable on to all hosts
            from distrun.runtime.mpi.links import MpiLinkMaker

            mpi = MpiLinkMaker(local_group, network, layout.rank, len(rendezvous.members))
            return mpi.links(layout.peers), mpi
        if self.environment.is_mpi:  # MPI_Finalize would wait for a rank that is gone, or that cannot be reached
            from distrun.runtime.mpi.requests import abort_at_exit

            network.on_failure = abort_at_exit
        timeout = self.settings.start_timeout
        connections = DataConnections(rendezvous, layout, network, local_group, timeout, self.interruption)
        ports = [member.port for member in rendezvous.members]
        connections.connect(layout.peers.values(), ports, rendezvous.listener, deadline)
        return connections.links(local_group, layout.peers), connections

    def _local_group(self, own: int, ranks: Sequence[int], network: Network | None) -> LocalGroup:
        name = f"{self.environment.job_name()}:{self.meeting}"
        if self.ranks:
            name += f":{hashlib.sha256(repr(self.ranks).encode()).hexdigest()[:16]}"
        timeout = self.settings.start_timeout
        key = self.environment.job_key()
        peers = rendezvous_within_host(name, key, own, len(ranks), timeout, self.interruption)
        return LocalGroup(own, ranks, peers, self._timeouts(), network, interruption=self.interruption)

    def _groups(self, local_group: LocalGroup) -> Groups:
        self.settings.check_backend(hosts=1)
        if self.settings.backend != "mpi":
            backend = SharedMemoryBackend(local_group)
            return Groups(backend, OneHostFactory(local_group, backend))
        from distrun.runtime.backends.mpi import MPIBackend
        from distrun.runtime.mpi.requests import Requests

        requests = Requests(local_group, local_group.own, local_group.size, "shared_memory")
        mpi = MPIBackend(local_group, requests)
        return Groups(mpi, OneHostFactory(local_group, mpi, requests))

    def _engine(
        self, local_group: LocalGroup, groups: Groups, threshold: int, may_offer: bool = False
    ) -> ProgressEngine:
        controller = None
        if self.topology.rank == 0:
            controller = Controller({0: range(self.topology.size)}, self.settings.cache_capacity)
        return start_engine(local_group, groups, controller, threshold, may_offer, self.gpu_config())

    def gpu_config(self) -> GpuConfig | None:
        """Return what this rank's GPU has to know of the job; None for a rank on the CPU."""
        if not isinstance(self.device, Cuda):
            return None
        return GpuConfig(
            self.device.index,
            self.topology.hostname,
            self.settings.share_gpus,
            self.device.sharers > 1,
            self._timeouts(),
            self._gpu_backend(),
            self.interruption is not None,
        )

    def _gpu_backend(self) -> str:
        """Return what moves tensors between GPUs: what is encrypted, where that is asked for, which NCCL is not."""
        is_encrypted = self.settings.encrypt and self.topology.local_size < self.topology.size
        return "staged" if is_encrypted and self.settings.gpu_backend == "auto" else self.settings.gpu_backend

    def _timeouts(self) -> Timeouts:
        return Timeouts(self.settings.stall_warning, self.settings.stall_timeout)


def _withdraw(local_group: LocalGroup, kind: type | None, error: BaseException | None, _: object) -> None:
    """Let the others know why a rank could not join after all."""
    if error is not None:
        local_group.announce(FAILED, str(error))
        local_group.close(is_hurried=True)


def _of_meeting(endpoint: RendezvousEndpoint, meeting: Meeting) -> RendezvousEndpoint:
    """Return the endpoint with keys that hold for one meeting only.

    A rank that is a generation ahead, or has been left behind, is turned away like any process without the key.
    """

    def derived(key: bytes) -> bytes:
        return hmac.digest(key, f"generation {meeting}".encode(), "sha256")

    def greet(make: Callable[[], tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
        greeting, key = make()
        return greeting, derived(key)

    def find(opener: Callable[[bytes], bytes], greeting: bytes) -> bytes:
        return derived(opener(greeting))

    return replace(
        endpoint,
        key=endpoint.key and derived(endpoint.key),
        greeting=endpoint.greeting and partial(greet, endpoint.greeting),
        opener=endpoint.opener and partial(find, endpoint.opener),
    )
