"""The world of this process: init and shutdown, and who we are among the ranks of the job."""

from __future__ import annotations

import atexit
import hmac
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from distrun.errors import BootstrapError, JobAbortedError, NotInitializedError, UsageError
from distrun.runtime import contract, devices, environments, mpi_place
from distrun.runtime.backends.base import Backend
from distrun.runtime.backends.hierarchical import HierarchicalBackend
from distrun.runtime.backends.shared_memory import SharedMemoryBackend
from distrun.runtime.controller import CACHE_CAPACITY, Controller
from distrun.runtime.devices import Device, cuda
from distrun.runtime.devices.cuda import Cuda
from distrun.runtime.engine import FAREWELL, Engine
from distrun.runtime.environments import Environment
from distrun.runtime.gpu.setting import Setting
from distrun.runtime.hosts import Hosts
from distrun.runtime.links import Links, connect
from distrun.runtime.meeting import meet
from distrun.runtime.neighbourhood import Neighbourhood, Patience
from distrun.runtime.network import Network
from distrun.runtime.rendezvous import Gathering, Place, gather
from distrun.runtime.segment import FAILED
from distrun.runtime.solo_engine import SoloEngine
from distrun.runtime.topology import Topology
from distrun.tensor_fusion.fusing import DEFAULT_THRESHOLD

FUSION_THRESHOLD = "DISTRUN_FUSION_THRESHOLD"  # bytes; 0 fuses nothing
CACHE = "DISTRUN_CACHE_CAPACITY"  # requests

_WIRE_DTYPES = ("", "float16", "bfloat16")

log = logging.getLogger("distrun")

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
        return World(topology, device, SoloEngine(_gpu_setting(device, topology, 1, environ)))
    start = _Start(environment, topology, environ, generation, device)
    if topology.local_size == topology.size:
        return World(topology, device, start.on_one_host())
    return start.between_hosts()


class _Start:
    """The way from an environment to an engine that is connected with the other ranks."""

    def __init__(
        self,
        environment: Environment,
        topology: Topology,
        environ: Mapping[str, str],
        generation: int,
        device: Device,
    ) -> None:
        self._device = device
        self._environment = environment
        self._topology = topology
        self._environ = environ
        self._generation = generation
        self._timeout = _number(environ, contract.START_TIMEOUT, 60.0)
        self._threshold = int(_number(environ, FUSION_THRESHOLD, DEFAULT_THRESHOLD))

    def on_one_host(self) -> Engine:
        """Through shared memory."""
        # Neighbours are numbered by their ranks, not their local ranks: MPI libraries number the two independently.
        neighbourhood = self._neighbourhood(self._topology.rank, range(self._topology.size), None)
        return self._engine(neighbourhood, _backend(self._environ, neighbourhood), self._threshold, 1)

    def between_hosts(self) -> World:
        """Through the network as well."""
        gathering = self._gather()
        mpi_place.release()
        deadline = time.monotonic() + self._timeout
        with ExitStack() as undo:
            undo.callback(gathering.close)
            hosts = Hosts.of([member.host for member in gathering.members], self._topology.rank)
            self._check(hosts)
            network = Network(hosts.rank, gathering.members, gathering.control, gathering.alarms)
            undo.callback(network.close)
            neighbourhood = self._neighbourhood(hosts.position, hosts.neighbours, network)
            undo.push(partial(_withdraw, neighbourhood))
            links = self._links(gathering, hosts, network, neighbourhood, deadline)
            gathering.reception.close()
            backend = HierarchicalBackend(neighbourhood, hosts, links, _WIRE_DTYPES[gathering.settings["wire_dtype"]])
            settings = gathering.settings
            may_offer = bool(settings["may_offer"])
            engine = self._engine(neighbourhood, backend, settings["fusion_threshold"], hosts.count, may_offer)
            undo.pop_all()
        cross_rank, cross_size = hosts.cross()
        return World(replace(self._topology, cross_rank=cross_rank, cross_size=cross_size), self._device, engine)

    def _gather(self) -> Gathering:
        topology = self._topology
        host = f"{self._environment.job_name()} {socket.gethostname()}"
        return gather(
            topology.rank,
            topology.size,
            host,
            topology.hostname,
            self._place(),
            self._settings(),
            self._timeout,
            self._environ.get(contract.NETWORK) or None,
        )

    def _settings(self) -> dict[str, int]:
        """What rank 0 decides for all: variables may not reach every host, and ranks that go by different ones do not meet."""
        return {
            "fusion_threshold": self._threshold,
            "wire_dtype": self._wire_dtype(),
            "mpi": int(self._prefers_mpi()),
            "may_offer": int(not _number(self._environ, contract.STALL_TIMEOUT, 0.0)),
        }

    def _wire_dtype(self) -> int:
        choice = self._environ.get(contract.WIRE_DTYPE, "")
        if choice not in _WIRE_DTYPES:
            raise UsageError(
                f"{contract.WIRE_DTYPE}={choice!r} is no half-precision type: use float16 or bfloat16, or unset it"
            )
        return _WIRE_DTYPES.index(choice)

    def _prefers_mpi(self) -> bool:
        choice = self._environ.get(contract.BACKEND, "auto")
        if choice not in ("auto", "tcp", "mpi"):
            raise UsageError(f"{contract.BACKEND}={choice!r} does not connect several hosts: use auto, tcp or mpi")
        return choice == "mpi" or (choice == "auto" and self._environment.is_mpi)

    def _place(self) -> Place:
        place = self._environment.place()
        if place is None:
            network = self._environ.get(contract.NETWORK) or None
            place = mpi_place.find(self._topology.rank, self._topology.size, network, self._timeout)
        return _of_generation(place, self._generation)

    def _check(self, hosts: Hosts) -> None:
        if len(hosts.neighbours) != self._topology.local_size:
            raise BootstrapError(
                f"rank {hosts.rank} was told that its host has {self._topology.local_size} ranks, but {len(hosts.neighbours)} "
                f"call it theirs ({self._topology.hostname}): give each host of the job its own name"
            )

    def _links(
        self,
        gathering: Gathering,
        hosts: Hosts,
        network: Network,
        neighbourhood: Neighbourhood,
        deadline: float,
    ) -> Links:
        if gathering.settings["mpi"]:  # rank 0's word: a launcher may not have passed the variable on to all hosts
            from distrun.runtime.mpi_links import MPILinks

            return MPILinks(neighbourhood, network, hosts)
        return connect(gathering, hosts, network, neighbourhood, deadline)

    def _neighbourhood(self, own: int, ranks: Sequence[int], network: Network | None) -> Neighbourhood:
        name = f"{self._environment.job_name()}:{self._generation}"
        presences = meet(name, self._environment.job_key(), own, len(ranks), self._timeout)
        return Neighbourhood(own, ranks, presences, _patience(self._environ), network)

    def _engine(
        self, neighbourhood: Neighbourhood, backend: Backend, threshold: int, hosts: int, may_offer: bool = False
    ) -> Engine:
        controller = None
        if self._topology.rank == 0:
            capacity = int(_number(self._environ, CACHE, CACHE_CAPACITY))
            controller = Controller({0: range(self._topology.size)}, capacity)
        gpu_setting = _gpu_setting(self._device, self._topology, hosts, self._environ)
        return Engine(neighbourhood, backend, controller, threshold, may_offer, gpu_setting)


def _patience(environ: Mapping[str, str]) -> Patience:
    return Patience(_number(environ, contract.STALL_WARNING, 60.0), _number(environ, contract.STALL_TIMEOUT, 0.0))


def _gpu_setting(device: Device, topology: Topology, hosts: int, environ: Mapping[str, str]) -> Setting | None:
    if not isinstance(device, Cuda):
        return None
    return Setting(device.index, topology.hostname, hosts, cuda.may_share(environ), _patience(environ))


def _withdraw(neighbourhood: Neighbourhood, kind: type | None, error: BaseException | None, _: object) -> None:
    """Let the others know why a rank could not join after all."""
    if error is not None:
        neighbourhood.announce(FAILED, str(error))
        neighbourhood.close()


def _of_generation(place: Place, generation: int) -> Place:
    """The place with keys that hold for one `init` only: a rank that is ahead, or has been left behind, is a stranger."""

    def derived(key: bytes) -> bytes:
        return hmac.digest(key, b"generation %d" % generation, "sha256")

    def greet(make: Callable[[], tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
        greeting, key = make()
        return greeting, derived(key)

    def find(opener: Callable[[bytes], bytes], greeting: bytes) -> bytes:
        return derived(opener(greeting))

    return replace(
        place,
        key=place.key and derived(place.key),
        greeting=place.greeting and partial(greet, place.greeting),
        opener=place.opener and partial(find, place.opener),
    )


def _backend(environ: Mapping[str, str], neighbourhood: Neighbourhood) -> Backend:
    choice = environ.get(contract.BACKEND, "auto")
    if choice in ("auto", "shared_memory"):
        return SharedMemoryBackend(neighbourhood)
    if choice == "mpi":
        from distrun.runtime.backends.mpi import MPIBackend

        return MPIBackend(neighbourhood)
    raise UsageError(f"{contract.BACKEND}={choice!r} is no backend: use auto, shared_memory or mpi")


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

    Raises:
        JobAbortedError: operations on the GPU have failed after they were queued, and no call has told so.
    """
    global _world
    with _lock:
        if _world is None:
            return
        world, _world = _world, None
        if not _is_child:
            lost = world.engine.shutdown(_farewell())
            if lost is not None:
                raise JobAbortedError(f"results of operations on the GPU are lost: {lost}")


def _farewell() -> str:
    """Why we leave, for the others: it may be the last thing they hear."""
    error = getattr(sys, "last_value", None)  # the interpreter keeps what ended the script
    if error is None:
        return FAREWELL
    words = f"{type(error).__name__}: {error}".splitlines()
    return f"its script ended with {words[0][:300]}"


def _disown() -> None:
    """In a forked child (a data loader's, say): rank and size can still be asked for, the rest belongs to the parent."""
    global _is_child, _lock
    _lock = threading.Lock()  # the parent's may have been held at the fork
    if _world is not None and _world.topology.size > 1:
        _is_child = True
        _world.engine.disown()


def _leave() -> None:
    """At the interpreter's exit, where an exception would change nothing: lost results must not end in success."""
    try:
        shutdown()
    except JobAbortedError as error:
        log.error("%s", error)
        if getattr(sys, "last_value", None) is None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)


atexit.register(_leave)
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
    """The device this rank is bound to: its `name` is "cuda" or "cpu", its `index` the number of the GPU.

    Frameworks are told by their `init`; cupy is not, since nothing here touches CUDA before it has to: say
    `cupy.cuda.Device(distrun.device().index).use()`.
    """
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
