"""Joining and leaving the job with JAX: its GPUs, pending computations, and `jax.distributed`."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

import jax

from distrun.contract import settings
from distrun.contract.launch import LaunchContract
from distrun.graphs.jax import mechanism
from distrun.host.endpoints import format_endpoint, free_port
from distrun.host.interfaces import matching, own_interfaces, reachable
from distrun.runtime.collectives import initialisation, objects
from distrun.runtime.world import world
from distrun.runtime.world.devices import Cuda

_FRACTION = 0.75
"""The share of a GPU's memory that JAX takes by default."""
_MEMORY = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE")
"""The variables that set this share. The second is the new name of the first, which older JAX versions do not know."""


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the job, with the arguments of `distrun.init`. Where there are GPUs, JAX sees only this rank's GPU.

    Call it before JAX computes anything, because after that the choice of GPUs is fixed.

    It does not start `jax.distributed`, which is not needed: see `initialize`.
    """
    initialisation.init(comm, process_sets)
    bind()


def bind() -> None:
    """Make JAX see only this rank's GPU and, if ranks share it, take only this rank's part of its memory.

    JAX takes three quarters of a GPU's memory when it starts, unless environment variables set another share. If they
    do, they are not changed. If JAX has started already and has several GPUs, it is too late to choose, and a warning
    is logged.
    """
    device = world.device()
    if not isinstance(device, Cuda) or world.local_size() == 1:
        return
    if _has_started():
        if jax.default_backend() == "gpu" and jax.local_device_count() > 1:
            logging.getLogger("distrun").warning(
                "JAX uses all GPUs of this host already, also those of other ranks: call init() before JAX computes "
                "anything"
            )
        return
    jax.config.update("jax_cuda_visible_devices", str(device.index))
    if device.sharers > 1 and not any(os.environ.get(variable) for variable in _MEMORY):
        os.environ[_MEMORY[0]] = f"{_FRACTION / device.sharers:.3f}"


def _has_started() -> bool:
    """Whether JAX has chosen its devices. JAX has no public function for this."""
    try:
        from jax._src import xla_bridge

        return bool(xla_bridge.backends_are_initialized())
    except (ImportError, AttributeError):
        return False


def shutdown() -> None:
    """Leave the job, after the computations that JAX has dispatched (see `distrun.shutdown`)."""
    if world.is_initialized():
        mechanism.finish()
    world.shutdown()


def initialize(**options: Any) -> None:
    """Start `jax.distributed` with the ranks of this job, for JAX's own collectives: `pjit`, `shard_map`, `psum`.

    Call it before JAX computes anything. `options` go to `jax.distributed.initialize`. Under distrun, JAX's coordinator
    listens at MASTER_PORT, so nothing else should use this port. Without distrun's launcher, it listens at a free port
    that rank 0 chooses. The collectives of this package stay available, for arrays that lie in one process.
    """
    init()
    if isinstance(world.device(), Cuda):
        options.setdefault("local_device_ids", [world.device().index])
    jax.distributed.initialize(
        **{
            "coordinator_address": _coordinator(),
            "num_processes": world.size(),
            "process_id": world.rank(),
            "cluster_detection_method": "deactivate",
            **options,
        }
    )


def _coordinator() -> str:
    """Return the endpoint where JAX's coordinator listens on rank 0's host."""
    if LaunchContract.is_present(os.environ):
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    else:
        address, port = objects.broadcast_object((_address(), free_port()) if world.rank() == 0 else None)
    return format_endpoint(address, port)


def _address() -> str:
    """Return the address where other hosts reach this one."""
    if world.local_size() == world.size():
        return "127.0.0.1"
    network = settings.current().network
    present = own_interfaces()
    candidates = matching(present, network, "this host") if network else reachable(present)
    return candidates[0].address if candidates else socket.gethostname()
