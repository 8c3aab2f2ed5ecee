"""The frames that launcher and agent exchange over the agent's stdin and stdout: binary-safe, self-delimiting, ordered.

A frame is a kind, the number of a process (-1 when it concerns no single one), a length and that many bytes. The
launcher numbers the processes of a job. In a job that is not elastic, and in the first generation of one that is, the
number is the rank. Output has flow control: the agent sends at most `WINDOW` bytes of output that the launcher has not
acknowledged, so a blocked terminal stops the ranks' writing and never the frames that report an exit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from distrun.errors import LaunchError

HEADER = struct.Struct("!BiI")
NO_PROCESS = -1
WINDOW = 1 << 20  # bytes of output (or of stdin) that may be in flight without an acknowledgement
CHUNK = 1 << 16  # bytes read from a pipe at a time: the capacity of a Linux pipe
MAX_PAYLOAD = 1 << 26  # bytes. A longer frame means that something else wrote to the agent's stdout


class FrameKind(IntEnum):
    """The kinds of frames. The first group goes to the agent and the second comes from it. HELLO and the last group go
    both ways.
    """

    HELLO = 0
    """To an agent on another host: a `handshake.Greeting`. From it: a `handshake.HostInfo`."""
    PLAN = 1
    """The agent's part of the plan, JSON. The ranks start when it arrives."""
    FUNCTION = 2
    """A piece of the pickled function of `distrun.run`. All pieces precede PLAN."""
    SIGNAL = 3
    """A signal number for the process group of every rank still alive."""
    STDIN = 4
    """Bytes for the stdin of a rank. An empty payload means end of file."""
    FINISH = 5
    """The job is over: end the processes that ranks left behind, and exit. Payload: seconds of grace."""
    PAUSE = 6
    """The launcher is about to be suspended: stop the ranks by the signal of this number, and do not count the launcher
    as lost while it sends nothing. The answer is PAUSED.
    """
    RESUME = 7
    """The launcher runs again: resume the ranks."""
    START = 8
    """Start one more process of an elastic job, or a lost server again. Payload: a `RankPlan`, JSON, after PLAN."""
    END = 9
    """End a process, and everything that it has started. Payload: seconds of grace."""
    RELEASE = 15
    """A process that has ended is not needed again: end its leftovers, and forget it."""
    OBSERVE = 10
    """Report the ranks' activity and usage every `interval` seconds (JSON). An interval of 0 ends the reports."""
    DEPARTED = 11
    """A rank, perhaps on another host, exited with 0 before it joined the others. Payload: a sentence for people."""

    STARTED = 16
    """A rank runs. Payload: its process id and, if it is bound to CPUs, these: `4711 0-3,8`."""
    NOT_STARTED = 17
    """A rank could not be started. Payload: exit status and the reason."""
    STDOUT = 18
    STDERR = 19
    RESULT = 20
    """A piece of what the function of `distrun.run` returned or raised on a rank."""
    EXITED = 21
    """A rank is gone. Payload: a `RankExit`. All its output precedes this frame."""
    GONE = 22
    """The last frame: the agent has no descendant left. Payload: the number of processes that it had to end, and the
    number that it could not end.
    """
    PAUSED = 23
    """The ranks are stopped."""
    ACTIVITY = 24
    """The activity of a rank at the moment when the first rank failed or the job began to end. Payload: JSON of a
    `tracing.activity.ActivityDescription`.
    """
    EVENTS = 25
    """Events that a rank has recorded since the last such frame. See `agent.observation.unpack_events`."""
    TRACEBACK = 28
    """Output like STDERR, the traceback of what is raised again by `distrun.run`: it is kept and not displayed."""
    SAMPLE = 26
    """The usage of the host's CPUs, memory and so on, by its ranks and in all: JSON. See `agent.usage`."""
    GRADIENTS = 27
    """The digest of a rank's first gradients, a number. See `tracing.gradients`."""

    ACK = 32
    """Bytes of output (or of stdin) have been dealt with. Payload: their number."""
    SEALED = 34
    """To the agent: a frame that nobody on the way can read or change. See `sealed_frames`."""
    KEEPALIVE = 33
    """No payload. Shows the other side that the connection is alive. Between hosts only."""
    SHIPMENT = 38
    """To a host that is being prepared, before there is an agent: a piece of what it has requested."""
    CLOCK = 36
    """To the agent: the launcher's time in nanoseconds. From it: the same number, and the time on its host."""
    STACK = 37
    """To the agent: a request for the stacks of a process's threads. From it: the stacks, as text for people."""
    CONTROL = 35
    """A message on the control channel of a process, which the agent passes on unread. See `contract.elastic.messages`.
    """


class Frame(NamedTuple):
    """One message between launcher and agent."""

    kind: FrameKind
    process: int = NO_PROCESS
    payload: bytes = b""

    def encode(self) -> bytes:
        """Return the bytes of the frame."""
        return HEADER.pack(self.kind, self.process, len(self.payload)) + self.payload

    @classmethod
    def number(cls, kind: FrameKind, number: float, process: int = NO_PROCESS) -> Frame:
        """Return a frame whose payload is one number, as text."""
        return cls(kind, process, repr(int(number) if isinstance(number, int) else float(number)).encode())

    def as_int(self) -> int:
        """Return the payload of a frame that `number` made from an int."""
        return int(self.payload)

    def as_float(self) -> float:
        """Return the payload of a frame that `number` made."""
        return float(self.payload)


class FrameDecoder:
    """Turns the bytes of a stream, in pieces of any size, back into frames."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take the next bytes of the stream and yield the frames that they complete.

        Raises:
            LaunchError: the stream is not one of frames.
        """
        self._pending += data
        while len(self._pending) >= HEADER.size:
            kind, process, length = HEADER.unpack_from(self._pending)
            if length > MAX_PAYLOAD or kind not in _KINDS:
                raise LaunchError(
                    f"the agent's stream is damaged: {bytes(self._pending[:60])!r} is not a frame of ours"
                )
            end = HEADER.size + length
            if len(self._pending) < end:
                return
            frame = Frame(FrameKind(kind), process, bytes(self._pending[HEADER.size : end]))
            del self._pending[:end]
            yield frame


_KINDS = frozenset(FrameKind)


def split_payload(kind: FrameKind, data: bytes, process: int = NO_PROCESS, size: int = 1 << 20) -> Iterator[Frame]:
    """Cut long data into frames of at most `size` bytes."""
    for start in range(0, len(data), size):
        yield Frame(kind, process, data[start : start + size])
