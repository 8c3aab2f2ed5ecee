"""Joining the job and leaving it, with JAX's own ways of doing so."""

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
from distrun.runtime.world.devices.cuda import Cuda

_FRACTION = 0.75
"""The share of a GPU's memory that JAX takes."""
_MEMORY = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE")
"""The variables that say how much it is to take. (The second is the first's new name, which older ones do not know.)"""


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the job, with the arguments of `distrun.init`. Where there are GPUs, JAX will see the one of this rank.

    Call it before JAX computes anything: after that it can no longer be told which GPU to use.

    It has nothing to do with `jax.distributed`, which is not needed: see `initialize`.
    """
    initialisation.init(comm, process_sets)
    bind()


def bind() -> None:
    """Let JAX see this rank's GPU only, and take this rank's part of its memory if it is shared.

    JAX takes three quarters of a GPU's memory when it starts, unless variables say otherwise; those that are set stay.
    If JAX has started already and has several GPUs, there is nothing left to choose, and a warning says what to do.
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
    """Whether JAX has chosen its devices. It does not say so in public."""
    try:
        from jax._src import xla_bridge

        return bool(xla_bridge.backends_are_initialized())
    except (ImportError, AttributeError):
        return False


def shutdown() -> None:
    """Leave the job, after what has been dispatched: see `distrun.shutdown`."""
    if world.is_initialized():
        mechanism.finish()
    world.shutdown()


def initialize(**options: Any) -> None:
    """Start `jax.distributed` with the ranks of this job, for JAX's own collectives: `pjit`, `shard_map`, `psum`.

    Call it before JAX computes anything. `options` go to `jax.distributed.initialize`. Under distrun its coordinator
    listens at MASTER_PORT, so nothing else should; elsewhere at a port that rank 0 finds free. The collectives of this
    package stay available, for arrays that lie in one process.
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
    """Return the endpoint at which rank 0 is to listen."""
    if LaunchContract.is_present(os.environ):
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    else:
        address, port = objects.broadcast_object((_address(), free_port()) if world.rank() == 0 else None)
    return format_endpoint(address, port)


def _address() -> str:
    """The address at which other hosts reach this one."""
    if world.local_size() == world.size():
        return "127.0.0.1"
    network = settings.current().network
    present = own_interfaces()
    candidates = matching(present, network, "this host") if network else reachable(present)
    return candidates[0].address if candidates else socket.gethostname()
