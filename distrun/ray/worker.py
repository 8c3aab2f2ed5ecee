"""The code that runs in workers: collecting facts about a worker, making it a rank, and its calls.

The actor is the rank itself and not its parent. So functions may use Ray, the object of `executable_cls` lives there,
and the state that one call leaves is there for the next.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import cloudpickle
import ray

import distrun
from distrun.errors import LaunchError
from distrun.host.endpoints import free_port, reserve_port
from distrun.host.interfaces import own_interfaces, reachable
from distrun.ray.placement import WorkerFacts

_ACTOR_NAME = ":actor_name:"  # Ray's log monitor tags the lines after this one, `(rank 1 pid=123) ...`

Call = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]

_reservation: socket.socket | None = None


def facts() -> WorkerFacts:
    """Return the facts about this worker. Its port for the rendezvous stays reserved afterwards."""
    global _reservation
    if _reservation is None:
        _reservation = reserve_port()
    context = ray.get_runtime_context()
    return WorkerFacts(
        node=context.get_node_id(),
        address=ray.util.get_node_ip_address(),
        pid=os.getpid(),
        version=distrun.__version__,
        rendezvous=_reservation.getsockname()[1],
        port=free_port(),
        interfaces=tuple(reachable(own_interfaces())),
        gpus=tuple(map(str, ray.get_gpu_ids())),
        logs=tuple(filter(None, map(_log_file, (1, 2)))),
    )


def become_rank(environ: Mapping[str, str]) -> None:
    """Set the variables of a rank, so that `distrun.init()` in later function calls joins the world."""
    os.environ.update(environ)
    from distrun.contract.horovod import install_as_horovod, is_on

    if is_on(os.environ):
        install_as_horovod()


def leave(reason: str | None = None) -> None:
    """Leave the world, if this rank is in it. With a reason, operations of the other ranks fail with it."""
    if "distrun.runtime.world.world" in sys.modules:
        from distrun.runtime.world import world

        world.leave(reason)


@dataclass(frozen=True)
class Raised:
    """An exception that a function raised on a rank."""

    pickled: bytes
    """The exception. Empty if it cannot be pickled, or would end the driver, as KeyboardInterrupt does."""
    text: str
    """Its traceback."""


class Worker:
    """The actor, for Ray's `remote`: a rank whose world lasts from call to call."""

    def __init__(self) -> None:
        self._executable: Any = None

    def facts(self) -> WorkerFacts:
        """See `facts`."""
        return facts()

    def begin(self, environ: Mapping[str, str]) -> None:
        """Become a rank, whose output Ray tags with its number."""
        become_rank(environ)
        for stream in (sys.stdout, sys.stderr):
            print(f"{_ACTOR_NAME}rank {environ['RANK']}", file=stream, flush=True)

    def make_executable(self, call: Call) -> tuple[None, Raised | None]:
        """Make the object that `try_execute` passes to functions, and return the exception, if any."""
        self._executable, raised = _tried(*call)
        return None, raised

    def run(self, call: Call) -> Any:
        """Call a function with its arguments. If it raises, this rank leaves the world, so that no rank waits for it.

        Raises:
            LaunchError: the function called `sys.exit`.
            Exception: the function's exception.
        """
        function, args, kwargs = call
        return _call(function, args, kwargs)

    def try_run(self, call: Call) -> tuple[Any, Raised | None]:
        """Do the same, and return the result or the exception."""
        return _tried(*call)

    def try_execute(self, function: Callable[[Any], Any]) -> tuple[Any, Raised | None]:
        """Call a function with the executable, and return the result or the exception."""
        return _tried(function, (self._executable,), {})


def _tried(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Raised | None]:
    try:
        return _call(function, args, kwargs), None
    except BaseException as error:
        try:
            pickled = bytes(cloudpickle.dumps(error)) if isinstance(error, Exception) else b""
        except Exception:  # the caller then gets the traceback only
            pickled = b""
        return None, Raised(pickled, traceback.format_exc())


def _call(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    try:
        return function(*args, **kwargs)
    except SystemExit as error:
        leave(f"its function called sys.exit({error.code!r})")
        raise LaunchError(f"the function called sys.exit({error.code!r})") from error
    except BaseException as error:
        with suppress(Exception):  # an error here must not hide the function's
            leave(f"its function ended with {type(error).__name__}: {error}".splitlines()[0][:300])
        raise


def _log_file(descriptor: int) -> tuple[str, int] | None:
    """Return the file that a descriptor writes to, and its length, or None if it is not a file."""
    try:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        return (path, os.stat(path).st_size) if os.path.isfile(path) else None
    except OSError:
        return None
