"""The part of `DistrunStrategy` that is the same for both packages of Lightning, and imports neither.

Gradients travel as with `distrun.torch.DistributedOptimizer`. All else that the ranks exchange (logged metrics, those
of torchmetrics, decisions of callbacks, objects) goes through a process group of distrun's backend, as Lightning and
torchmetrics expect. Lightning's `DDPStrategy` does that, the next class of both.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed

from distrun.errors import UsageError
from distrun.runtime.collectives.compressors import Compression, Compressor
from distrun.runtime.operations.reduction import Average, ReduceOp
from distrun.runtime.world import world
from distrun.torch import DistributedOptimizer, broadcast_parameters, init
from distrun.torch.optimizer import Distributed
from distrun.torch_distributed import BACKEND, register

_TIMEOUT = timedelta(minutes=30)
_Strategy: Any = object  # to type checkers, what comes next has everything


class DistrunEnvironment:
    """The place of this rank, as Lightning asks a ClusterEnvironment for it. Lightning starts no processes then."""

    creates_processes_externally = True
    main_address, main_port = "", 0  # `distrun://` needs none

    @staticmethod
    def detect() -> bool:
        """Return False: it is chosen by the strategy."""
        return False

    def world_size(self) -> int:
        """Return the number of ranks."""
        return world.size()

    def global_rank(self) -> int:
        """Return this rank."""
        return world.rank()

    def local_rank(self) -> int:
        """Return the place of this rank on its host."""
        return world.local_rank()

    def node_rank(self) -> int:
        """Return the place of its host."""
        return world.cross_rank()

    def set_world_size(self, size: int) -> None:
        """Do nothing: the launcher has decided."""

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: the launcher has decided."""

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Do nothing: the strategy has compared them."""

    def teardown(self) -> None:
        """Do nothing: the ranks stay in the job until their script ends."""


class StrategyOnDistrun(_Strategy):
    """Changes Lightning's `DDPStrategy`, the next class of `DistrunStrategy`."""

    parallel_devices: Any
    num_nodes: Any
    optimizers: Any

    def __init__(
        self,
        *,
        compression: Compressor = Compression.none,
        op: ReduceOp = Average,
        groups: int | Sequence[Sequence[Tensor]] = 0,
        sparse_as_dense: bool = False,
        accelerator: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
        timeout: timedelta = _TIMEOUT,
    ) -> None:
        """Join the job.

        Args:
            compression, op, groups, sparse_as_dense: as for `distrun.torch.DistributedOptimizer`.
            accelerator, checkpoint_io, precision_plugin: as for Lightning's strategies.
            timeout: of collectives other than those of gradients.
        """
        init()
        super().__init__(
            accelerator=accelerator,
            cluster_environment=DistrunEnvironment(),
            checkpoint_io=checkpoint_io,
            precision_plugin=precision_plugin,
            process_group_backend=BACKEND,
            timeout=timeout,
        )
        self._reducing = partial(
            DistributedOptimizer, compression=compression, op=op, groups=groups, sparse_as_dense=sparse_as_dense
        )

    # Places ----------------------------------------------------------------------------------------------------------

    @property
    def root_device(self) -> torch.device:
        """The device of this rank."""
        kind = self.parallel_devices[0].type
        return torch.device(kind, world.device().index) if kind == "cuda" else torch.device(kind)

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """The samples of this rank."""
        return {"num_replicas": world.size(), "rank": world.rank()}

    def _configure_launcher(self) -> None:
        """Compare what the Trainer was given with the ranks there are, which distrun has started already."""
        devices, hosts, ranks = self.parallel_devices, world.cross_size(), world.local_size()
        every = torch.cuda.device_count() if devices[0].type == "cuda" else 1  # what devices="auto" gives
        if len(devices) not in (every, ranks) or self.num_nodes not in (1, hosts):
            raise UsageError(
                f"Trainer(devices={len(devices)}, num_nodes={self.num_nodes}), but this host has {ranks} of the "
                f"{world.size()} ranks: leave devices and num_nodes out, and start the ranks by distrun -np and -H"
            )
        self.parallel_devices = [torch.device(devices[0].type, index) for index in range(ranks)]
        self.num_nodes = hosts

    def setup_distributed(self) -> None:
        """Make the process group, unless the script has."""
        if not distributed.is_initialized():
            register()
            distributed.init_process_group(BACKEND, init_method="distrun://", timeout=self._timeout)
        super().setup_distributed()

    # Training --------------------------------------------------------------------------------------------------------

    def configure_ddp(self) -> None:
        """Give all ranks the weights of rank 0."""
        broadcast_parameters(itertools.chain(self.model.named_parameters(), self.model.named_buffers()), 0)

    def setup_optimizers(self, trainer: Any) -> None:
        """Make the optimizers reduce gradients."""
        super().setup_optimizers(trainer)
        for optimizer in self.optimizers:
            if not isinstance(optimizer, Distributed):
                self._reducing(optimizer, self.lightning_module.named_parameters())
            elif optimizer._reducer is not None:  # of an earlier `fit`
                optimizer._reducer.begin_generation()

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Make `backward` only accumulate gradients within this context."""
        with ExitStack() as contexts:
            for optimizer in self.optimizers:
                contexts.enter_context(optimizer.no_sync())
            yield

    def training_step(self, *arguments: Any, **options: Any) -> Any:
        """Call the module's, which must have a loss on all ranks."""
        result = super().training_step(*arguments, **options)
        if result is None and world.size() > 1 and self.lightning_module.automatic_optimization:
            raise UsageError(
                f"training_step returned None on rank {world.rank()}, but the others may have a loss: return one on "
                "all ranks, such as a loss of zero times the output, or use manual optimization"
            )
        return result

    def teardown(self) -> None:
        """Stop reducing, since one rank alone may use the module afterwards."""
        for optimizer in self.optimizers:
            if isinstance(optimizer, Distributed) and optimizer._reducer is not None:
                optimizer._reducer.leave()
        super().teardown()
