"""distrun as the backend of Ray Train: `Trainer(train, scaling_config=...)`, with Ray Data, Tune and checkpoints."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
import ray.train
from ray.train.backend import Backend as TrainBackend, BackendConfig

from distrun.contract import horovod as horovod_mode
from distrun.ray import worker
from distrun.ray.world import rank_environs
from distrun.runner.planning.variables.environ import forwarded_settings


@dataclass
class Config(BackendConfig):
    """The configuration of distrun as a backend of Ray Train. Training functions call `distrun.init()` as always."""

    env: Mapping[str, str] = field(default_factory=dict)
    """Further variables of the workers. DISTRUN_* of the process that makes the trainer reach them in any case."""
    network: str = ""
    """The interfaces and subnets that ranks of other nodes may use, like `distrun --network`."""
    horovod: bool = False
    """Whether `import horovod` gives distrun in the workers."""

    def __post_init__(self) -> None:
        mode = {horovod_mode.MODE: "1"} if self.horovod or horovod_mode.is_on(os.environ) else {}
        self.env = {**forwarded_settings(os.environ), **mode, **self.env}

    @property
    def backend_cls(self) -> type[Backend]:
        """The class that Ray Train makes the backend of."""
        return Backend


class Backend(TrainBackend):
    """Ray Train's hooks: at the start workers get the variables of their ranks, and at the end they leave the world."""

    # Off, since Ray sorts GPUs by number: with several GPUs per worker, the second rank would get one of the first's.
    share_cuda_visible_devices: bool = False

    def on_start(self, worker_group: Any, backend_config: Config) -> None:
        """Make each worker the rank at its position in the group, as Ray Train counts."""
        facts = worker_group.execute(worker.facts)
        is_horovod = horovod_mode.is_on(backend_config.env)
        environs = rank_environs(facts, backend_config.env, is_horovod, backend_config.network)
        started = [
            worker_group.execute_single_async(rank, worker.become_rank, environ)
            for rank, environ in enumerate(environs)
        ]
        ray.get(started)

    def on_shutdown(self, worker_group: Any, backend_config: Config) -> None:
        """Make all workers leave the world."""
        worker_group.execute(worker.leave)


def _trainer_of_ray() -> type[Any]:
    """Return Ray's trainer for functions, of the second version of Ray Train if it is enabled (the default)."""
    if hasattr(ray.train, "UserCallback"):  # not in the first version
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
    else:
        from ray.train.data_parallel_trainer import DataParallelTrainer
    return DataParallelTrainer


class Trainer(_trainer_of_ray()):  # type: ignore[misc]
    """Ray Train's `DataParallelTrainer` with distrun between its workers.

    It takes the same arguments, and `backend_config` is a `Config` by default. Ray Train detects a lost worker, and
    `FailureConfig(max_failures=...)` restarts the workers from the last checkpoint.
    """

    def __init__(self, train_loop_per_worker: Any, *, backend_config: Config | None = None, **arguments: Any) -> None:
        """Make the trainer.

        Args:
            train_loop_per_worker: the training function, which calls `distrun.init()`.
            backend_config: distrun's configuration. None: the default one.
            arguments: other arguments of Ray's `DataParallelTrainer`.
        """
        super().__init__(train_loop_per_worker, backend_config=backend_config or Config(), **arguments)
