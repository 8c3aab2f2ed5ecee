"""Generations of an elastic job: a process waits for its place in a generation, and joins it.

Imported only by processes that have a control channel.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from distrun.contract.elastic.channel import Channel, channel as channel, opened_channel
from distrun.contract.elastic.imports import imported
from distrun.contract.elastic.messages import Assignment, Ending, Imported, Joined, Waiting
from distrun.contract.launch import LaunchContract
from distrun.errors import BootstrapError, JobAbortedError, LaunchError, in_one_line, is_about_lost_rank
from distrun.host.departures import departure
from distrun.runtime.operations.call_site import raising_site
from distrun.runtime.world.bootstrap.join import World, join
from distrun.tracing import recording

_inits: dict[int, int] = {}  # by generation: the number of times that this process has called init in it
_has_joined = False  # whether this process has ever joined a world
_given: set[str] = set()  # the names of the variables in the present assignment


def join_assigned(channel: Channel, ranks: Sequence[int] | None, over: str | None) -> World:
    """Join the present generation, or the first later one whose ranks all join.

    `over` says why the present generation is over. None: it is not, or this is a new process without one.

    Raises:
        UsageError: a variable has an impossible value.
        LaunchError: the launcher is gone.
    """
    global _has_joined
    contract = LaunchContract.from_environ(os.environ)
    generation = contract.generation
    if not _given:
        _given.update(_variables(contract))
    while True:
        if generation == 0 or over is not None:
            channel.send(Waiting(generation, over or ""))
            assignment = channel.await_assignment()
            generation = assignment.generation
            _apply(assignment)
        channel.generation = generation
        inits = _inits[generation] = _inits.get(generation, 0) + 1
        try:
            world = join(os.environ, inits, ranks, channel, departure(os.environ))
        except (BootstrapError, JobAbortedError) as error:
            over = str(error)
        else:
            channel.send(Joined(generation))
            if not _has_joined:
                _has_joined = True
                channel.send(Imported(imported()))
            return world


def say_ending(error: BaseException | None) -> None:
    """Tell the launcher that the script of this process has ended, if the process has ever opened its channel.

    `error` is the exception that ended it, or None. One about a lost rank is not reported: the failure is that rank's.
    """
    channel = opened_channel()
    if channel is None or (error is not None and is_about_lost_rank(error)):
        return
    with suppress(LaunchError):
        channel.send(Ending() if error is None else _ended_by(error))


def _ended_by(error: BaseException) -> Ending:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the script may have closed or replaced it
            stream.flush()  # the launcher may end this process before the interpreter flushes at its exit
    step = 0 if recording.ring is None else recording.ring.steps
    return Ending(in_one_line(error), raising_site(error), step)


def _apply(assignment: Assignment) -> None:
    """Set the process's variables to the values that a process started now in its place would get."""
    for variable in _given.difference(assignment.environ):
        os.environ.pop(variable, None)
    os.environ.update(assignment.environ)
    _given.clear()
    _given.update(assignment.environ)


def _variables(contract: LaunchContract) -> Mapping[str, str]:
    """Return the variables that give a process its place when it starts."""
    return {
        **contract.to_environ(),
        **contract.openmpi_environ(),
        **contract.torchrun_environ("", 0, 1),
        "TF_CONFIG": "",
    }
