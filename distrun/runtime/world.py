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
from distrun.runtime import contract, devices, environments
from distrun.runtime.backends.base import Backend
from distrun.runtime.backends.hierarchical import HierarchicalBackend
from distrun.runtime.backends.shared_memory import SharedMemoryBackend
from distrun.runtime.devices import Device, cuda
from distrun.runtime.devices.cuda import Cuda
from distrun.runtime.engine.engine import FAREWELL, ProgressEngine
from distrun.runtime.engine.single_process import SingleProcessEngine
from distrun.runtime.engine.start import start_engine
from distrun.runtime.environments import Environment
from distrun.runtime.gpu.config import GpuConfig
from distrun.runtime.mpi import rendezvous as mpi_place
from distrun.runtime.negotiation.controller import CACHE_CAPACITY, Controller
from distrun.runtime.operations.timeouts import Timeouts
from distrun.runtime.rendezvous.across_hosts import Rendezvous, RendezvousEndpoint, rendezvous_across_hosts
from distrun.runtime.rendezvous.within_host import rendezvous_within_host
from distrun.runtime.shared_memory.segment import FAILED
from distrun.runtime.topology import Topology
from distrun.runtime.transport.host_layout import HostLayout
from distrun.runtime.transport.links import Links, connect
from distrun.runtime.transport.local_group import LocalGroup
from distrun.runtime.transport.network import Network
from distrun.tensor_fusion.batching import DEFAULT_THRESHOLD

FUSION_THRESHOLD = "DISTRUN_FUSION_THRESHOLD"  # bytes; 0 fuses nothing
CACHE = "DISTRUN_CACHE_CAPACITY"  # requests

_WIRE_DTYPES = ("", "float16", "bfloat16")

log = logging.getLogger("distrun")

AnyEngine = ProgressEngine | SingleProcessEngine


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
        return World(topology, device, SingleProcessEngine(_gpu_config(device, topology, 1, environ)))
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

    def on_one_host(self) -> ProgressEngine:
        """Through shared memory."""
        # Neighbours are numbered by their ranks, not their local ranks: MPI libraries number the two independently.
        local_group = self._local_group(self._topology.rank, range(self._topology.size), None)
        return self._engine(local_group, _backend(self._environ, local_group), self._threshold, 1)

    def between_hosts(self) -> World:
        """Through the network as well."""
        rendezvous = self._gather()
        mpi_place.release()
        deadline = time.monotonic() + self._timeout
        with ExitStack() as undo:
            undo.callback(rendezvous.close)
            hosts = HostLayout.of([member.host for member in rendezvous.members], self._topology.rank)
            self._check(hosts)
            network = Network(hosts.rank, rendezvous.members, rendezvous.control, rendezvous.alarms)
            undo.callback(network.close)
            local_group = self._local_group(hosts.position, hosts.local_ranks, network)
            undo.push(partial(_withdraw, local_group))
            links = self._links(rendezvous, hosts, network, local_group, deadline)
            rendezvous.listener.close()
            backend = HierarchicalBackend(local_group, hosts, links, _WIRE_DTYPES[rendezvous.settings["wire_dtype"]])
            settings = rendezvous.settings
            may_offer = bool(settings["may_offer"])
            engine = self._engine(local_group, backend, settings["fusion_threshold"], hosts.count, may_offer)
            undo.pop_all()
        cross_rank, cross_size = hosts.cross()
        return World(replace(self._topology, cross_rank=cross_rank, cross_size=cross_size), self._device, engine)

    def _gather(self) -> Rendezvous:
        topology = self._topology
        host = f"{self._environment.job_name()} {socket.gethostname()}"
        return rendezvous_across_hosts(
            topology.rank,
            topology.size,
            host,
            topology.hostname,
            self._endpoint(),
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

    def _endpoint(self) -> RendezvousEndpoint:
        endpoint = self._environment.endpoint()
        if endpoint is None:
            network = self._environ.get(contract.NETWORK) or None
            endpoint = mpi_place.find(self._topology.rank, self._topology.size, network, self._timeout)
        return _of_generation(endpoint, self._generation)

    def _check(self, hosts: HostLayout) -> None:
        if len(hosts.local_ranks) != self._topology.local_size:
            raise BootstrapError(
                f"rank {hosts.rank} was told that its host has {self._topology.local_size} ranks, but {len(hosts.local_ranks)} "
                f"call it theirs ({self._topology.hostname}): give each host of the job its own name"
            )

    def _links(
        self,
        rendezvous: Rendezvous,
        hosts: HostLayout,
        network: Network,
        local_group: LocalGroup,
        deadline: float,
    ) -> Links:
        if rendezvous.settings["mpi"]:  # rank 0's word: a launcher may not have passed the variable on to all hosts
            from distrun.runtime.mpi.links import MPILinks

            return MPILinks(local_group, network, hosts)
        return connect(rendezvous, hosts, network, local_group, deadline)

    def _local_group(self, own: int, ranks: Sequence[int], network: Network | None) -> LocalGroup:
        name = f"{self._environment.job_name()}:{self._generation}"
        peers = rendezvous_within_host(name, self._environment.job_key(), own, len(ranks), self._timeout)
        return LocalGroup(own, ranks, peers, _timeouts(self._environ), network)

    def _engine(
        self, local_group: LocalGroup, backend: Backend, threshold: int, hosts: int, may_offer: bool = False
    ) -> ProgressEngine:
        controller = None
        if self._topology.rank == 0:
            capacity = int(_number(self._environ, CACHE, CACHE_CAPACITY))
            controller = Controller({0: range(self._topology.size)}, capacity)
        gpu_config = _gpu_config(self._device, self._topology, hosts, self._environ)
        return start_engine(local_group, backend, controller, threshold, may_offer, gpu_config)


def _timeouts(environ: Mapping[str, str]) -> Timeouts:
    return Timeouts(_number(environ, contract.STALL_WARNING, 60.0), _number(environ, contract.STALL_TIMEOUT, 0.0))


def _gpu_config(device: Device, topology: Topology, hosts: int, environ: Mapping[str, str]) -> GpuConfig | None:
    if not isinstance(device, Cuda):
        return None
    return GpuConfig(device.index, topology.hostname, hosts, cuda.may_share(environ), _timeouts(environ))


def _withdraw(local_group: LocalGroup, kind: type | None, error: BaseException | None, _: object) -> None:
    """Let the others know why a rank could not join after all."""
    if error is not None:
        local_group.announce(FAILED, str(error))
        local_group.close()


def _of_generation(endpoint: RendezvousEndpoint, generation: int) -> RendezvousEndpoint:
    """The place with keys that hold for one `init` only: a rank that is ahead, or has been left behind, is a stranger."""

    def derived(key: bytes) -> bytes:
        return hmac.digest(key, b"generation %d" % generation, "sha256")

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


def _backend(environ: Mapping[str, str], local_group: LocalGroup) -> Backend:
    choice = environ.get(contract.BACKEND, "auto")
    if choice in ("auto", "shared_memory"):
        return SharedMemoryBackend(local_group)
    if choice == "mpi":
        from distrun.runtime.backends.mpi import MPIBackend

        return MPIBackend(local_group)
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
        JobAbortedError: operations on the GPU have failed after they were queued, or the progress thread has, and no call has
            raised that.
    """
    global _world
    with _lock:
        if _world is None:
            return
        world, _world = _world, None
        if not _is_child:
            lost = world.engine.shutdown(_farewell())
            if lost is not None:
                raise JobAbortedError(lost)


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
