"""The world of this process: init and shutdown, and who we are among the ranks of the job."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from distrun.errors import NotInitializedError, UsageError
from distrun.runtime import contract, devices, environments
from distrun.runtime.backends.base import Backend
from distrun.runtime.backends.shared_memory import SharedMemoryBackend
from distrun.runtime.controller import CACHE_CAPACITY, Controller
from distrun.runtime.devices import Device
from distrun.runtime.engine import Engine
from distrun.runtime.environments import Environment
from distrun.runtime.meeting import meet
from distrun.runtime.neighbourhood import Neighbourhood, Patience
from distrun.runtime.solo_engine import SoloEngine
from distrun.runtime.topology import Topology
from distrun.tensor_fusion.fusing import DEFAULT_THRESHOLD

BACKEND = "DISTRUN_BACKEND"  # auto (default), shared_memory or mpi
FUSION_THRESHOLD = "DISTRUN_FUSION_THRESHOLD"  # bytes; 0 fuses nothing
CACHE = "DISTRUN_CACHE_CAPACITY"  # requests

AnyEngine = Engine | SoloEngine


@dataclass(frozen=True)
class World:
    """An initialised world."""

    topology: Topology
    device: Device
    engine: AnyEngine


_lock = threading.Lock()
_world: World | None = None
_generation = 0
_is_child = False  # of a fork: the world is the parent's


def init() -> None:
    """Join the job this process was started in: afterwards rank, size and the collectives are available.

    Works under distrun, mpirun (Open MPI, MPICH), srun and torchrun; a plain `python train.py` is a world of one. Blocks
    until all ranks have come. Calling it again while initialised does nothing. After `shutdown` it may be called anew.

    Raises:
        UsageError: a variable of the environment has an impossible value.
        BootstrapError: the other ranks did not come within the start timeout.
    """
    global _world, _generation
    with _lock:
        if _is_child:
            raise UsageError(
                "a forked child of a rank cannot join the job: start it as a rank, or use the spawn method"
            )
        if _world is not None:
            return
        _generation += 1
        _world = _join(os.environ, _generation)


def _join(environ: Mapping[str, str], generation: int) -> World:
    environment = environments.detect(environ)
    topology = environment.topology()
    device = devices.bind(topology, environ)
    if topology.size == 1:
        return World(topology, device, SoloEngine())
    if topology.local_size != topology.size:
        raise UsageError(
            f"the job has {topology.size} ranks, {topology.local_size} of them on this host: this version connects ranks of "
            "one host only, so start all of them on one"
        )
    return World(topology, device, _engine(environment, topology, environ, generation))


def _engine(environment: Environment, topology: Topology, environ: Mapping[str, str], generation: int) -> Engine:
    # Neighbours are numbered by their ranks, not their local ranks: MPI libraries number the two independently.
    presences = meet(
        f"{environment.job_name()}:{generation}",
        environment.job_key(),
        topology.rank,
        topology.size,
        _number(environ, contract.START_TIMEOUT, 60.0),
    )
    patience = Patience(_number(environ, contract.STALL_WARNING, 60.0), _number(environ, contract.STALL_TIMEOUT, 0.0))
    neighbourhood = Neighbourhood(topology.rank, range(topology.size), presences, patience)
    controller = None
    if topology.rank == 0:
        capacity = int(_number(environ, CACHE, CACHE_CAPACITY))
        controller = Controller({0: range(topology.size)}, capacity)
    threshold = int(_number(environ, FUSION_THRESHOLD, DEFAULT_THRESHOLD))
    return Engine(neighbourhood, _backend(environ, neighbourhood), controller, threshold)


def _backend(environ: Mapping[str, str], neighbourhood: Neighbourhood) -> Backend:
    choice = environ.get(BACKEND, "auto")
    if choice in ("auto", "shared_memory"):
        return SharedMemoryBackend(neighbourhood)
    if choice == "mpi":
        from distrun.runtime.backends.mpi import MPIBackend

        return MPIBackend(neighbourhood)
    raise UsageError(f"{BACKEND}={choice!r} is no backend: use auto, shared_memory or mpi")


def _number(environ: Mapping[str, str], variable: str, default: float) -> float:
    text = environ.get(variable)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UsageError(f"{variable}={text!r} is not a number >= 0: unset it or correct it")
    return value


def shutdown() -> None:
    """Leave the job. Operations under way fail; on other ranks, those that need this rank do. Does nothing if not initialised.

    Runs by itself when the interpreter exits.
    """
    global _world
    with _lock:
        if _world is None:
            return
        world, _world = _world, None
        if not _is_child:
            world.engine.shutdown()


def _disown() -> None:
    """In a forked child (a data loader's, say): rank and size can still be asked for, the rest belongs to the parent."""
    global _is_child, _lock
    _lock = threading.Lock()  # the parent's may have been held at the fork
    if _world is not None and _world.topology.size > 1:
        _is_child = True
        _world.engine.disown()


atexit.register(shutdown)
os.register_at_fork(after_in_child=_disown)


def current() -> World:
    """The world.

    Raises:
        NotInitializedError: there is none.
    """
    if _world is None:
        raise NotInitializedError("distrun is not initialised: call distrun.init() first")
    return _world


def engine() -> AnyEngine:
    """The engine of the world; see `current`."""
    if _world is None:
        raise NotInitializedError("distrun is not initialised: call distrun.init() first")
    return _world.engine


def is_initialized() -> bool:
    """Whether `init` was called, and `shutdown` not since."""
    return _world is not None


def topology() -> Topology:
    """All six numbers and the host name, in one object."""
    return current().topology


def device() -> Device:
    """The device this rank is bound to."""
    return current().device


def rank() -> int:
    """This process's position in the job, 0 to size - 1."""
    return current().topology.rank


def size() -> int:
    """The number of ranks in the job."""
    return current().topology.size


def local_rank() -> int:
    """This process's position among the ranks of its host; the number of its GPU."""
    return current().topology.local_rank


def local_size() -> int:
    """The number of ranks on this host."""
    return current().topology.local_size


def cross_rank() -> int:
    """The position of this host among the hosts that have a rank with our local rank."""
    return current().topology.cross_rank


def cross_size() -> int:
    """The number of hosts that have a rank with our local rank."""
    return current().topology.cross_size


def _prepare_log() -> None:
    """Warnings go to stderr, marked as ours, unless the application has set up the `distrun` logger itself."""
    log = logging.getLogger("distrun")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("distrun: %(message)s"))
        log.addHandler(handler)
        log.propagate = False


_prepare_log()
