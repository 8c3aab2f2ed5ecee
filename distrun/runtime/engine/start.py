"""Starting an engine: build a rank's communication from its parts, with settings that the ranks of a host agree on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distrun.runtime.backends.groups import WORLD, Groups
from distrun.runtime.backends.hierarchical import HierarchicalBackend
from distrun.runtime.backends.shared_memory import SharedMemoryBackend
from distrun.runtime.engine.engine import ProgressEngine
from distrun.runtime.gpu.config import GpuConfig
from distrun.runtime.gpu.monitor import GpuMonitor
from distrun.runtime.negotiation.controller import Controller
from distrun.runtime.negotiation.eager.piggyback import Piggyback
from distrun.runtime.negotiation.negotiator import Negotiator
from distrun.runtime.negotiation.pending import PendingOperations
from distrun.runtime.negotiation.tree.control_plane import control_plane
from distrun.runtime.operations.unreported import UnreportedError
from distrun.runtime.transport.control.control_tree import ControlTree
from distrun.runtime.transport.local_group import LocalGroup
from distrun.tensor_fusion.batching import DEFAULT_THRESHOLD

if TYPE_CHECKING:
    from distrun.runtime.engine.autotuning.journal import Journal


def start_engine(
    local_group: LocalGroup,
    groups: Groups,
    controller: Controller | None,
    fusion_threshold: int = DEFAULT_THRESHOLD,
    may_offer: bool = False,
    gpu_config: GpuConfig | None = None,
    fusion_journal: Journal | None = None,
    tree: ControlTree | None = None,
) -> ProgressEngine:
    """Make the engine of one rank of a job with several, and start its progress thread.

    Args:
        local_group: the ranks of this host, all of which call this.
        groups: move arrays in host memory.
        controller: given on the coordinator only.
        fusion_threshold: the most bytes to fuse. Within a host, rank 0's value counts.
        may_offer: see `Piggyback`. The same on all hosts.
        gpu_config: given on ranks that are bound to a GPU.
        fusion_journal: given on the coordinator if the fusion threshold is to be tuned. Gets the tuner's records.
        tree: given where leaders of hosts forward the messages between ranks and coordinator.
    """
    backend = groups.backends[WORLD]
    # Ranks agree on whether there are spare cores, which decides whether peers wake each other: if they saw different
    # affinities, each could rely on the other. And every rank plans the fusion by itself, so all must use one
    # threshold: rank 0's.
    shown = local_group.exchange((fusion_threshold, local_group.spare_cores, may_offer), "init")
    local_group.spare_cores = min(words[1] for words in shown)
    may_offer = all(words[2] for words in shown)
    is_pair = backend.size == 2 and may_offer and isinstance(backend, SharedMemoryBackend)
    has_piggyback = is_pair or isinstance(backend, HierarchicalBackend)
    operations = PendingOperations(shown[0][0])
    amend = None
    if fusion_journal is not None and controller is not None:
        from distrun.runtime.engine.fusion_tuning import FusionTuner  # imported late: other jobs need no statistics

        amend = FusionTuner(fusion_threshold, controller.request, fusion_journal).amend
    negotiator = Negotiator(
        local_group.ranks[local_group.own],
        backend.size,
        control_plane(local_group, tree),
        operations,
        controller,
        Piggyback(backend, may_offer) if has_piggyback and tree is None else None,
        local_group.timeouts,
        local_group.describe_rank,
        groups.ranks,
        amend=amend,
    )
    unreported_error = UnreportedError()
    alert = local_group.service_bells[local_group.own].ring
    gpu_monitor = GpuMonitor(
        gpu_config, groups, local_group.lost_rank, alert, unreported_error, local_group.departure_of
    )
    engine = ProgressEngine(local_group, groups, controller, operations, negotiator, gpu_monitor, unreported_error)
    engine.start()
    return engine
