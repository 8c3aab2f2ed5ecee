"""The facts that are known before the ranks find each other, and what one or several hosts derive alike from them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distrun.contract.elastic.interruption import Interruption
from distrun.contract.settings import Settings, given
from distrun.contract.topology import Topology
from distrun.runtime.backends.groups import Groups
from distrun.runtime.engine.autotuning import turns
from distrun.runtime.engine.engine import ProgressEngine
from distrun.runtime.engine.single_process import SingleProcessEngine
from distrun.runtime.engine.start import start_engine
from distrun.runtime.gpu.config import GpuConfig
from distrun.runtime.negotiation.controller import Controller
from distrun.runtime.negotiation.tree.control_plane import controller_of
from distrun.runtime.operations.timeouts import Timeouts
from distrun.runtime.transport.control.control_tree import ControlTree
from distrun.runtime.transport.local_group import LocalGroup
from distrun.runtime.transport.network import Network
from distrun.runtime.transport.rendezvous.within_host import LocalRendezvous, rendezvous_within_host
from distrun.runtime.transport.shared_memory.segment import FAILED
from distrun.runtime.world.devices import Cuda, Device
from distrun.runtime.world.environments import Environment

if TYPE_CHECKING:
    from distrun.runtime.engine.autotuning.journal import Journal

AnyEngine = ProgressEngine | SingleProcessEngine


@dataclass(frozen=True)
class RendezvousRound:
    """The number of a rendezvous in the job. Ranks of another round do not find each other, even in the same job and at
    the same port."""

    generation: int
    inits: int

    def __str__(self) -> str:
        return f"{self.generation}.{self.inits}"


@dataclass(frozen=True)
class Facts:
    """The facts that are known before the ranks find each other."""

    environment: Environment
    topology: Topology
    device: Device
    settings: Settings
    rendezvous_round: RendezvousRound
    interruption: Interruption | None
    """Ends the wait for the other ranks, and later the world."""
    ends_rendezvous: Interruption | None
    """Ends the wait for the other ranks."""
    ranks: tuple[int, ...] = ()
    """The job's ranks that form the world. Empty: all of them."""

    def join_local_group(self, own: int, ranks: Sequence[int], network: Network | None) -> LocalGroup:
        """Run the rendezvous of the ranks of this host. Returns when all have come.

        `own` is this rank's position in `ranks`, and `network` has the connections with other hosts, if there are any.

        Raises:
            BootstrapError: some did not come within the start timeout, or the wait was interrupted.
        """
        rendezvous, timeout = self.local_rendezvous(), self.settings.start_timeout
        peers = rendezvous_within_host(rendezvous.name, rendezvous.key, own, len(ranks), timeout, self.ends_rendezvous)
        return LocalGroup(
            own, ranks, peers, self.timeouts(), network, interruption=self.interruption, rendezvous=rendezvous
        )

    def local_rendezvous(self) -> LocalRendezvous:
        """Return the name and key of the rendezvous of this host's ranks."""
        name = f"{self.environment.job_name()}:{self.rendezvous_round}"
        if self.ranks:
            name += f":{hashlib.sha256(repr(self.ranks).encode()).hexdigest()[:16]}"
        return LocalRendezvous(name, self.environment.job_key())

    def start_engine(
        self,
        local_group: LocalGroup,
        groups: Groups,
        threshold: int,
        may_offer: bool = False,
        tree: ControlTree | None = None,
    ) -> ProgressEngine:
        """Start the engine of a rank that is connected with all other ranks.

        `may_offer`: two ranks may send each other small arrays along with their submissions.
        """
        controller = None
        if self.topology.rank == 0:
            members, capacity = {0: range(self.topology.size)}, self.settings.cache_capacity
            controller = Controller(members, capacity) if tree is None else controller_of(tree, members, capacity)
        journal = self._begin_tuning() if self.settings.autotune else None
        return start_engine(local_group, groups, controller, threshold, may_offer, self.gpu_config(), journal, tree)

    def _begin_tuning(self) -> Journal | None:
        """Prepare autotuning. Returns the journal for the fusion threshold, if this rank is to tune it."""
        from distrun.runtime.engine.autotuning.journal import Journal, start_log  # other jobs need no statistics

        turns.begin_world()
        world, file = self.rendezvous_round.generation, self.settings.autotune_log
        if self.topology.rank > 0:
            return None
        if file and self.rendezvous_round == RendezvousRound(1, 1):
            start_log(file)
        is_given = "fusion_threshold" in given(os.environ) or not self.settings.fusion_threshold
        return None if is_given else Journal("operations", world, file, tells=True)

    def gpu_config(self) -> GpuConfig | None:
        """Return what this rank's GPU has to know about the job. None for a rank on the CPU."""
        if not isinstance(self.device, Cuda):
            return None
        return GpuConfig(
            self.device.index,
            self.topology.hostname,
            self.settings.share_gpus,
            self.device.sharers > 1,
            self.timeouts(),
            self._gpu_backend(),
            self.interruption is not None,
        )

    def _gpu_backend(self) -> str:
        """Return the transport between GPUs. Where encryption is asked for, it is not NCCL, which has none."""
        is_encrypted = self.settings.encrypt and self.topology.local_size < self.topology.size
        return "staged" if is_encrypted and self.settings.gpu_backend == "auto" else self.settings.gpu_backend

    def timeouts(self) -> Timeouts:
        """Return the times after which a stalled operation causes a warning, and fails."""
        return Timeouts(self.settings.stall_warning, self.settings.stall_timeout)


def withdraw(local_group: LocalGroup, kind: type | None, error: BaseException | None, _: object) -> None:
    """Tell the other ranks of this host why a rank could not join."""
    if error is not None:
        local_group.announce(FAILED, str(error))
        local_group.close(is_hurried=True)
