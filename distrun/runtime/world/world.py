"""The world of this process: init and shutdown, and the place of this rank among the ranks of the job."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from distrun.contract import horovod, settings
from distrun.contract.elastic.variables import CONTROL_FD
from distrun.contract.launch import LaunchContract
from distrun.contract.topology import Topology
from distrun.errors import JobAbortedError, NotInitializedError, UsageError, in_one_line
from distrun.host.departures import departure
from distrun.runtime.engine.failing import FAREWELL
from distrun.runtime.world.bootstrap.facts import AnyEngine
from distrun.runtime.world.bootstrap.join import World, join
from distrun.runtime.world.devices import Device
from distrun.tracing import layout, recording

if TYPE_CHECKING:
    from distrun.contract.elastic.channel import Channel

log = logging.getLogger("distrun")
if not log.handlers:  # the application has not configured it: send warnings to stderr, marked as distrun's
    _handler = logging.StreamHandler()
    _handler.setFormatter(logging.Formatter("distrun: %(message)s"))
    log.addHandler(_handler)
    log.propagate = False

_lock = threading.Lock()
_fail_lock = threading.RLock()  # keeps `_fail_if_over` from failing an engine that is being shut down
_world: World | None = None
_inits = 0  # the worlds of this process in the present generation
_is_child = False  # whether this is a forked child: the world is the parent's


_on_leaving: list[Callable[[], None]] = []
_on_joining: list[Callable[[], None]] = []


_after_shutdown: list[Callable[[], None]] = []


def after_shutdown(callback: Callable[[], None]) -> None:
    """Call a function each time this process has left the job."""
    if callback not in _after_shutdown:
        _after_shutdown.append(callback)


def on_leaving(callback: Callable[[], None]) -> None:
    """Call a function each time this process leaves its world."""
    _on_leaving.append(callback)


def on_joining(callback: Callable[[], None]) -> None:
    """Call a function each time this process, as a survivor, has joined a later generation of its elastic job.

    The functions are called in the order of registration, which is the same on all survivors. They may use collectives
    that new ranks use in their scripts. They are not called for `init`.
    """
    _on_joining.append(callback)


def join_world(ranks: Sequence[int] | None = None, variables: Mapping[str, str] | None = None) -> bool:
    """Join the job this process was started in. Afterwards rank, size and the collectives are available.

    A process that is new in an elastic job waits here until the launcher gives it a place.

    Args:
        ranks: the job's ranks that form the world, in the order of their new ranks. None: all.
        variables: treated as part of the environment. If they contain a launch contract, they define the job, and no
            other world of it is joined.

    Returns:
        Whether this call has joined. False if the process was in a world already.

    Raises:
        UsageError: a variable of the environment has an impossible value, or `ranks` cannot be a world.
        BootstrapError: the other ranks did not come within the start timeout.
        LaunchError: in an elastic job, the launcher is gone.
    """
    with _lock:
        if _is_child:
            raise UsageError(
                "a forked child of a rank cannot join the job: start it as a rank, or use the spawn method"
            )
        if _world is not None:
            return False
        chosen = settings.current()
        _adjust_log(chosen)
        if chosen.events:
            recording.open_ring(chosen.timeline_mark_cycles)
        _enter(ranks, None, variables or {})
        if chosen.timeline:
            from distrun.runtime.world import timeline  # imported late: most jobs have no timeline

            timeline.begin(chosen, current().topology)
            after_shutdown(timeline.end)
        if file := horovod.timeline_file(os.environ):
            try:
                begin_horovods_timeline(file, chosen.timeline_mark_cycles)
            except UsageError as error:  # no reason for a Horovod script not to train
                log.error("no timeline is written for %s: %s", horovod.TIMELINE, error)
        if chosen.scalars and (_is_first() or CONTROL_FD in os.environ):  # in an elastic job any rank may become rank 0
            from distrun.runtime.world.scalars import writing

            writing.begin(chosen.scalars, _is_first)
            after_shutdown(writing.end)
        return True


def begin_horovods_timeline(file: str, mark_cycles: bool) -> None:
    """Let rank 0 write a timeline in Horovod's format, until this process leaves the job.

    Raises:
        UsageError: the file cannot be written, or events are not recorded.
    """
    from distrun.runtime.world import timeline

    if _is_first() or CONTROL_FD in os.environ:  # in an elastic job any rank may become rank 0
        present = current()
        # Without a library's name no activity is written: a GPU is busy with an operation for longer than this process.
        library = "" if present.device.name != "cpu" else "MPI" if present.engine.backend.name == "MPI" else "GLOO"
        timeline.begin_horovods(file, mark_cycles, library, _is_first)
        after_shutdown(timeline.end_horovods)


def _is_first() -> bool:
    return _world is not None and _world.topology.rank == 0


def _enter(ranks: Sequence[int] | None, over: str | None, variables: Mapping[str, str]) -> None:
    """Join the present generation or, if it is over for the reason `over`, the next one."""
    recording.enter(layout.JOINING)
    _join(ranks, over, variables)
    if recording.ring is not None:
        recording.ring.begin_generation(_world.generation if _world is not None else 1)
    recording.enter(layout.OTHER)


def _join(ranks: Sequence[int] | None, over: str | None, variables: Mapping[str, str]) -> None:
    global _world, _inits
    if LaunchContract.is_present(variables):
        _world = join({**os.environ, **variables}, 1, ranks)
        return
    if CONTROL_FD in os.environ:
        from distrun.runtime.world import generations  # imported late: other jobs have one generation

        channel = generations.channel()
        if channel is not None:
            channel.on_interruption = partial(_fail_if_over, channel)
            _world = generations.join_assigned(channel, ranks, over)
            _fail_if_over(channel)
            return
    _inits += 1
    _world = join({**os.environ, **variables}, _inits, ranks, departure=departure(os.environ))


def _fail_if_over(channel: Channel) -> None:
    """Fail the engine if this generation is over, so that blocked collectives return."""
    with _fail_lock:
        reason = channel.interruption
        if _world is not None and reason is not None:
            _world.engine.fail(reason)


def enter_next(reason: str) -> None:
    """Leave the present generation of an elastic job, in any state, and join the next one.

    Operations under way fail, here and on the other ranks, and their results are lost. The launcher and the
    other ranks are told the `reason`.

    Raises:
        LaunchError: the launcher is gone.
    """
    with _lock:
        world = _leave_world()
        if world is not None:
            world.engine.shutdown(f"it leaves this generation: {reason}")
        _enter(None, reason, {})
    for callback in _on_joining:
        callback()


def shutdown() -> None:
    """Leave the job. Does nothing if it was not joined. The interpreter calls this at its exit.

    Operations under way fail on this rank. On the other ranks, the operations fail that need this rank.

    Raises:
        JobAbortedError: operations on the GPU failed after they were queued, or the progress thread failed, and no call
            has raised that error.
    """
    leave()


def leave(reason: str | None = None) -> None:
    """Do what `shutdown` does, and give ranks that need this one a reason: `its function ended with ValueError: ...`.

    None: its script has ended.

    Raises:
        JobAbortedError: see `shutdown`.
    """
    with _lock:
        world = _leave_world()
        if world is not None and not _is_child:
            lost = world.engine.shutdown(reason or _farewell())
            for callback in _after_shutdown:
                callback()
            if lost is not None:
                raise JobAbortedError(lost)


def _leave_world() -> World | None:
    """Leave the world, and return it, or None if there is none. The caller has to shut its engine down."""
    global _world
    with _fail_lock:
        world, _world = _world, None
    if world is not None:
        for callback in _on_leaving:
            callback()
    return world


def _farewell() -> str:
    """Return the reason for leaving, for the other ranks."""
    # The interpreter keeps the exception that ended the script.
    error = getattr(sys, "last_value", None)
    return FAREWELL if error is None else f"its script ended with {in_one_line(error)}"


def _disown() -> None:
    """In a forked child such as a data loader's: leave everything but rank and size to the parent."""
    global _is_child, _lock
    # A thread of the parent may have held the lock at the fork, and does not exist in the child.
    _lock = threading.Lock()
    if _world is not None and _world.topology.size > 1:
        _is_child = True
        _world.engine.disown()


def _leave() -> None:
    """Shut down at the interpreter's exit, where exceptions do not set the exit status. Lost results set it to 1."""
    if CONTROL_FD in os.environ:
        from distrun.runtime.world import generations

        generations.say_ending(getattr(sys, "last_value", None))
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
    """Return the world.

    Raises:
        NotInitializedError: `init` was not called, or `shutdown` was called since.
    """
    if _world is None:
        raise NotInitializedError("distrun is not initialised: call distrun.init() first")
    return _world


def engine() -> AnyEngine:
    """Return the engine of the world. Raises as `current` does, but calls nothing, since every operation asks."""
    if _world is None:
        raise NotInitializedError("distrun is not initialised: call distrun.init() first")
    return _world.engine


def is_initialized() -> bool:
    """Whether `init` was called, and `shutdown` was not called since."""
    return _world is not None


def is_elastic() -> bool:
    """Whether this process may continue in another world, of another size: it has a control channel to the launcher."""
    if CONTROL_FD not in os.environ:
        return False
    from distrun.runtime.world import generations

    return generations.channel() is not None


def topology() -> Topology:
    """Return this rank's six numbers and its host's name in one object."""
    return current().topology


def generation() -> int:
    """Return the number of the world in its job, counted from 1. In an elastic job, ranks that come or go begin a new
    one.

    It is 1 in jobs that are not elastic, unless the launcher has restarted all ranks.
    """
    return current().generation


def device() -> Device:
    """Return the device that this rank is bound to. Its `name` is "cuda" or "cpu", its `index` the number of the GPU.

    Each framework's `init` makes the framework use it. For cupy call `cupy.cuda.Device(distrun.device().index).use()`:
    distrun itself touches CUDA only when the first tensor on a GPU comes.
    """
    return current().device


def rank() -> int:
    """Return this process's position in the job, 0 to size - 1."""
    return current().topology.rank


def size() -> int:
    """Return the number of ranks in the job."""
    return current().topology.size


def local_rank() -> int:
    """Return this process's position among the ranks of its host, which is also the number of its GPU.

    In an elastic job the latter holds only at first, since a process keeps its GPU when its rank changes. See `device`.
    """
    return current().topology.local_rank


def local_size() -> int:
    """Return the number of ranks on this host."""
    return current().topology.local_size


def cross_rank() -> int:
    """Return the position of this host among the hosts that have a rank with this local rank."""
    return current().topology.cross_rank


def cross_size() -> int:
    """Return the number of hosts that have a rank with this local rank."""
    return current().topology.cross_size


def _adjust_log(chosen: settings.Settings) -> None:
    """Apply the log settings, if there are any."""
    if chosen.log_level:
        names = {"trace": "DEBUG", "fatal": "CRITICAL"}
        log.setLevel(names.get(chosen.log_level, chosen.log_level.upper()))
    for handler in log.handlers if chosen.log_time else ():
        handler.setFormatter(logging.Formatter("%(asctime)s distrun: %(message)s"))
