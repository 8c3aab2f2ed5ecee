"""A rank that exchanges messages with the ranks next to it, and nothing else, from generation to generation."""

from __future__ import annotations

import os
import threading

import numpy as np
from telling import tell

import distrun
from distrun.errors import CollectiveError
from distrun.runtime.collectives.point_to_point import messages
from distrun.runtime.world import regroup, world


def ring(step: int, count: int) -> None:
    """Send to the next rank what the one before is to have sent as well."""
    rank, size = distrun.rank(), distrun.size()
    into = np.zeros(count)
    sent = messages.send(np.full(count, 1000.0 * rank + step).data, (rank + 1) % size, "ring")
    received = messages.receive(into.data, [(rank - 1) % size], "ring")
    received.wait()
    sent.wait()
    assert (into == 1000.0 * ((rank - 1) % size) + step).all()


def exchange() -> None:
    messages.prepare()
    held = [len(os.listdir("/proc/self/fd")), threading.active_count()]
    tell(begun=world.generation(), rank=distrun.rank(), size=distrun.size(), held=held)
    step = 0
    while True:
        step += 1
        ring(step % 1000, 10 if step % 3 else 500_000)
        tell(step=step)


def run() -> str:
    """Exchange messages until that fails; return why."""
    try:
        exchange()
    except CollectiveError as error:
        return str(error)
    raise AssertionError("it returned")


distrun.init()
regroup.enroll()
while True:
    reason = run()
    tell(over=reason)
    regroup.rejoin(reason)
