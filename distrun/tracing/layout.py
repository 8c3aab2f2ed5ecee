"""The form of a ring of events: a header, the names of operations, and slots for events that are used in turn.

The starter of a rank makes the memory, one memfd per rank, and keeps it: what a rank did last can be read when the rank
is gone. The rank writes without a lock, and a reader takes nothing out: it remembers how far it has read.

An operation is one event and not one per phase, because half a microsecond is two percent of a small allreduce. Which
rank is waited for is not recorded, since the waiting rank does not know it. On a common clock it is the rank that
submitted the operation last.
"""

from __future__ import annotations

import os
import struct

EVENTS_FD = "DISTRUN_EVENTS_FD"
"""The variable with the numbers of a rank's descriptors: of its ring, and of the eventfd by which it is asked for its
stacks: `7,8`."""

MAGIC = b"DREVENT1"
NAMES_END = 64
"""Where the header has the number of bytes of names, as a 32-bit number."""
WORLD = 72
"""Where the header has the number of the world that the rank is in, as a 32-bit number; 0: none yet."""
ANSWERED, ANSWER_LENGTH = 128, 132
"""Where the header has how often the rank has told its stacks, and the bytes of the last answer."""
HEADER = 4096
NAMES = 252 << 10
"""Bytes for names. Further ones have no entry, and the number 0."""
SLOTS = 1 << 15
"""Events that a ring holds, of some seconds at least: the last ones."""

EVENT = struct.Struct("<qqqqIIHHQ")
"""An event: begin, end, submitted (nanoseconds of the monotonic clock; 0: none), value, kind << 24 | name, number,
process set, count, and its place in the order of all of the rank's events, from 1, by which a reader knows what is
there. The last is written last."""
PLACE = struct.Struct("<44xQ")
"""The place of an event alone."""
NAME_LENGTH = struct.Struct("<H")
NAME_BITS = 24

ANSWER = HEADER + NAMES + SLOTS * EVENT.size
"""Where the rank writes its stacks when it is asked for them."""
LONGEST_ANSWER = 64 << 10

SIZE = ANSWER + LONGEST_ANSWER

# Kinds of events. First what the main thread does, each until the next one: `begin` alone is given.
OTHER = 1
"""Whatever the script does where nothing else is known."""
INPUT = 2
"""It waits for its next batch."""
FORWARD = 3
"""It has its batch, of `value` samples if that is known (else 0)."""
BACKWARD = 4
"""A first gradient is there; `value` is 1 if a GPU computes the gradients, which is busy with them for longer than the
thread."""
OPTIMIZER = 5
"""It updates the weights."""
SAVING = 6
"""It writes a checkpoint."""
JOINING = 7
"""It waits in `init` for the other ranks."""

STATES = (OTHER, INPUT, FORWARD, BACKWARD, OPTIMIZER, SAVING, JOINING)

# Then what happens in it, or beside it.
WAITING = 16
"""A thread waits for the operation `name`, and has been put to sleep; `begin` alone is given."""
WAITED = 17
"""That is over; `begin` and `end`."""
DONE = 18
"""`count` operations that travelled together are done, the first of them `name`: told to the coordinator at
`submitted`, executed from `begin` to `end`, `value` bytes; it was the `number`-th time in this world, by which ranks
can be compared."""
STEP = 19
"""A step of the training is done at `begin`; `number` counts them from 1."""
CYCLE = 20
"""The coordinator's decisions came in, `count` of them, at `begin`: only where such marks are asked for."""
GENERATION = 21
"""The rank has joined its `number`-th world at `begin`, in which operations are counted again."""
HELD = 22
"""The operation `name` was submitted at `begin`, and the coordinator may be told later: when the one that is being
executed is done, or, by a rank without a core to spare, when somebody has to wait."""

REMARK = 23
"""`name` is a text for people, at `begin`; after `AUTOTUNED`, what autotuning has chosen."""
AUTOTUNED = "autotuned "

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
    """Return a new ring without events, as a memfd closed on exec; its pages exist once they have been written."""
    fd = os.memfd_create("distrun-events", os.MFD_CLOEXEC)
    os.ftruncate(fd, SIZE)
    os.pwrite(fd, MAGIC, 0)
    return fd


def is_ring(fd: int) -> bool:
    """Whether a descriptor is one of a ring."""
    try:
        return os.fstat(fd).st_size == SIZE and os.pread(fd, len(MAGIC), 0) == MAGIC
    except OSError:
        return False
