"""Sending and receiving messages: the interface for the framework faces."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence

import numpy as np

from distrun.errors import UsageError
from distrun.runtime.collectives.copies import allgather
from distrun.runtime.collectives.point_to_point.frames import LONGEST_DTYPE
from distrun.runtime.collectives.point_to_point.messenger import Messenger
from distrun.runtime.collectives.point_to_point.transfer import Receive, Send
from distrun.runtime.engine.engine import ProgressEngine
from distrun.runtime.world import world
from distrun.tracing import recording
from distrun.tracing.layout import MESSAGES

_lock = threading.Lock()
_messenger: tuple[ProgressEngine, Messenger] | None = None  # of the world of that engine


def prepare() -> None:
    """Let ranks of other hosts send messages to this one. All ranks of the world call this together.

    In a job on one host it does nothing, nor does a second call in the same world.

    Raises:
        UsageError: none of the ports that DISTRUN_PORTS allows is free.
        BootstrapError: this rank cannot listen.
        CollectiveError: a rank is gone.
    """
    topology = world.topology()
    if topology.local_size == topology.size:
        return
    messenger().prepare(lambda port: allgather(np.array([port]), "point_to_point.ports").tolist())


def send(memory: memoryview, destination: int, group: str = "", tag: int = 0, dtype: str = "uint8") -> Send:
    """Start to send a message. Never waits.

    Args:
        memory: the bytes of the message, which must not change before the transfer is done.
        destination: the rank in the world that receives it.
        group: the name of the group of ranks that it belongs to. Sender and receiver must give the same name.
        tag: must match as well. Messages to a rank with the same group and tag are received in the order they were
            sent.
        dtype: the element type, which must match, in at most 24 characters.

    Raises:
        NotInitializedError: before `init`.
        UsageError: the destination is this rank, or not a rank of the job.
        JobAbortedError: the job has failed.
    """
    _check(destination, "send to")
    return messenger().send(Send(_bytes(memory), destination, group, tag, dtype[:LONGEST_DTYPE]))


def receive(memory: memoryview, sources: Sequence[int], group: str = "", tag: int = 0, dtype: str = "uint8") -> Receive:
    """Start to receive a message. Never waits.

    Args:
        memory: where its bytes go, of the size of the message.
        sources: the ranks in the world that it may come from. Of several messages the first to arrive is taken, and the
            transfer's `source` is then the rank that sent it.
        group, tag, dtype: see `send`.

    Raises: as `send` does.
    """
    for source in sources:
        _check(source, "receive from")
    if not sources:
        raise UsageError(f"rank {world.rank()} has no other rank to receive from")
    return messenger().receive(Receive(_bytes(memory), sources, group, tag, dtype[:LONGEST_DTYPE]))


def leave(group: str) -> None:
    """Leave a group of ranks: its receives here end, and its messages are dropped, including later ones.

    Args:
        group: a name that no other group in this world has, and that is not used again.
    """
    if _messenger is not None and _messenger[0] is world.engine():
        _messenger[1].leave(group)


def messenger() -> Messenger:
    """Return the messenger of the present world. The first call makes it.

    Raises:
        NotInitializedError: before `init`.
        UsageError: there is only one rank.
    """
    global _messenger
    engine = world.engine()
    if _messenger is not None and _messenger[0] is engine:
        return _messenger[1]
    if not isinstance(engine, ProgressEngine):
        raise UsageError("the job has only one rank, which has nobody to send messages to or to receive them from")
    with _lock:
        if _messenger is None or _messenger[0] is not engine:
            topology = world.topology()
            _messenger = engine, Messenger(engine, topology.rank, topology.size)
            if recording.ring is not None:
                recording.ring.mention(MESSAGES)
        return _messenger[1]


def _check(rank: int, verb: str) -> None:
    topology = world.topology()
    if not 0 <= rank < topology.size:
        raise UsageError(f"rank {topology.rank} cannot {verb} rank {rank}: the job has ranks 0 to {topology.size - 1}")
    if rank == topology.rank:
        raise UsageError(f"rank {rank} cannot {verb} itself: a message goes from one rank to another; copy the tensor")


def _bytes(memory: memoryview) -> memoryview:
    return memory if memory.format == "B" and memory.ndim == 1 else memory.cast("B")


def _leave() -> None:
    """This process leaves its world."""
    global _messenger
    found, _messenger = _messenger, None
    if found is not None:
        engine, leaving = found
        leaving.close(is_hurried=engine.failure is not None or getattr(sys, "last_value", None) is not None)


def _disown() -> None:
    """This is a forked child of a rank."""
    global _messenger, _lock
    found, _messenger, _lock = _messenger, None, threading.Lock()
    if found is not None:
        found[1].disown()


world.on_leaving(_leave)
os.register_at_fork(after_in_child=_disown)
