"""The format of a ring of events: a header, the names of operations, and slots for events that are reused in turn.

The process that starts a rank creates the memory, one memfd per rank, and keeps it, so the rank's last events can be
read when the rank is gone. The rank writes without a lock. A reader removes nothing, and remembers how far it has read.

An operation is one event and not one per phase, because half a microsecond is two percent of a small allreduce. Which
rank is waited for is not recorded, since the waiting rank does not know it. On a common clock it is the rank that
submitted the operation last.
"""

from __future__ import annotations

import os
import struct

EVENTS_FD = "DISTRUN_EVENTS_FD"
"""The variable with the numbers of two descriptors of a rank: of its ring, and of the eventfd that asks it for its
stacks: `7,8`."""

MAGIC = b"DREVENT1"
NAMES_END = 64
"""The header's offset of the number of bytes of names, a 32-bit number."""
WORLD = 72
"""The header's offset of the number of the rank's world, a 32-bit number. 0: none yet."""
GRADIENTS = 80
"""The header's offset of the digest of the first gradients (`tracing.gradients`), a 64-bit number. 0: there is none."""
ANSWERED, ANSWER_LENGTH = 128, 132
"""The header's offsets of the count of answers with the rank's stacks, and of the bytes of the last answer."""
HEADER = 4096
NAMES = 252 << 10
"""The bytes for names. A name that does not fit has no entry, and the number 0."""
SLOTS = 1 << 15
"""The number of events that a ring holds: the last ones, which cover several seconds at least."""

EVENT = struct.Struct("<qqqqIIHHQ")
"""An event: begin, end, submitted (nanoseconds of the monotonic clock, 0 for none), value, kind << 24 | name, number,
process set, count, and its place in the order of all of the rank's events, counted from 1. The place is written last,
so a reader knows by it which events are there and complete."""
PLACE = struct.Struct("<44xQ")
"""The place of an event, without its other fields."""
NAME_LENGTH = struct.Struct("<H")
NAME_BITS = 24

ANSWER = HEADER + NAMES + SLOTS * EVENT.size
"""The offset of the stacks, which the rank writes when it is asked for them."""
LONGEST_ANSWER = 64 << 10

SIZE = ANSWER + LONGEST_ANSWER

# Kinds of events. First the states of the main thread. Each lasts until the next one, and has only `begin`.
OTHER = 1
"""The script's code, where nothing more is known."""
INPUT = 2
"""The main thread waits for the next batch."""
FORWARD = 3
"""The main thread has its batch, of `value` samples (0: not known)."""
BACKWARD = 4
"""A first gradient has arrived. `value` is 1 if a GPU computes the gradients and is busy for longer than the thread."""
OPTIMIZER = 5
"""The main thread updates the weights."""
SAVING = 6
"""The main thread writes a checkpoint."""
JOINING = 7
"""The main thread waits in `init` for the other ranks."""

STATES = (OTHER, INPUT, FORWARD, BACKWARD, OPTIMIZER, SAVING, JOINING)

# Then events within these states, or in parallel to them.
WAITING = 16
"""A thread waits for the operation `name`, and has been put to sleep. Only `begin` is set."""
WAITED = 17
"""Such a wait is over. It lasted from `begin` to `end`."""
DONE = 18
"""`count` operations that were executed together are done, the first of them is `name`. They were submitted to the
coordinator at `submitted`, and executed from `begin` to `end`, with `value` bytes. It was the `number`-th time in this
world, so that ranks can be compared."""
STEP = 19
"""A step of the training is done at `begin`. `number` counts the steps from 1."""
CYCLE = 20
"""`count` decisions of the coordinator arrived at `begin`. Only where such marks are asked for."""
GENERATION = 21
"""The rank joined its `number`-th world at `begin`. The numbers of operations begin again in it."""
HELD = 22
"""The operation `name` was submitted to this rank at `begin`, and the coordinator may get it later: when the operation
that is being executed is done or, on a rank without a spare core, when another rank has to wait."""

REMARK = 23
"""`name` is a text for people, at `begin`. After the prefix `AUTOTUNED` it is a result of autotuning."""
AUTOTUNED = "autotuned "
MESSAGES = "messages"
"""A name without an event: the rank exchanges messages, which are not recorded one by one."""

KIND_NAMES = {OTHER: "other", INPUT: "input", FORWARD: "forward", BACKWARD: "backward", OPTIMIZER: "optimizer"} | {
    SAVING: "saving",
    JOINING: "joining",
    WAITING: "waiting",
    WAITED: "waited",
    DONE: "done",
    STEP: "step",
    CYCLE: "cycle",
    GENERATION: "generation",
    HELD: "held",
    REMARK: "remark",
}


def new_ring_fd() -> int:
    """Return a new ring without events, as a memfd closed on exec. Its pages exist once they have been written."""
    fd = os.memfd_create("distrun-events", os.MFD_CLOEXEC)
    os.ftruncate(fd, SIZE)
    os.pwrite(fd, MAGIC, 0)
    return fd


def is_ring(fd: int) -> bool:
    """Whether a descriptor is a ring's."""
    try:
        return os.fstat(fd).st_size == SIZE and os.pread(fd, len(MAGIC), 0) == MAGIC
    except OSError:
        return False
