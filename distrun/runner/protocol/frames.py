"""The frames launcher and agent exchange over the agent's stdin and stdout: binary-safe, self-delimiting, ordered.

A frame is a kind, the number of a process (-1 when it concerns no single one), a length and that many bytes. The
launcher numbers the processes of a job; in a job that is not elastic, and in the first generation of one that is, the
number is the rank. Output travels against a
window: the agent sends at most `WINDOW` bytes of output that the launcher has not acknowledged, so a blocked terminal
stops the ranks' writing and never the frames that report an exit.
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
MAX_PAYLOAD = 1 << 26  # bytes; a longer frame is not ours: something else wrote to the agent's stdout


class FrameKind(IntEnum):
    """The meaning of a frame. The first group goes to the agent, the second comes from it; HELLO and the last group go
    both ways."""

    HELLO = 0
    """To an agent on another host: a `handshake.Greeting`. From it: a `handshake.HostInfo`."""
    PLAN = 1
    """The agent's part of the plan, JSON. The ranks start when it arrives."""
    FUNCTION = 2
    """A piece of the pickled function of `distrun.run`; all pieces precede PLAN."""
    SIGNAL = 3
    """A signal number for the process group of every rank still alive."""
    STDIN = 4
    """Bytes for the stdin of a rank; none mean end of file."""
    FINISH = 5
    """The job is over: end what the ranks left behind, and leave; payload: seconds of grace."""
    PAUSE = 6
    """The launcher is about to be stopped: stop the ranks, by the signal of this number, and take its silence for what
    it is. The answer is PAUSED."""
    RESUME = 7
    """The launcher goes on, and so do the ranks."""
    START = 8
    """One more process of an elastic job, or a server that was lost, again; payload: a `RankPlan`, JSON, after PLAN."""
    END = 9
    """End a process, and all that it has started; payload: seconds of grace."""
    RELEASE = 15
    """Nothing is expected of a process any more, which has ended: end what it has left behind, and forget it."""
    OBSERVE = 10
    """Tell what the ranks do, and use, from now on: JSON, `interval` in seconds; 0: no longer."""
    DEPARTED = 11
    """A rank, perhaps of another host, has ended well before it joined the others; payload: a sentence that says so."""

    STARTED = 16
    """A rank runs; payload: its process id, and the CPUs that it is bound to, if it is: `4711 0-3,8`."""
    NOT_STARTED = 17
    """A rank could not be started; payload: exit status and the reason."""
    STDOUT = 18
    STDERR = 19
    RESULT = 20
    """A piece of what the function of `distrun.run` returned or raised on a rank."""
    EXITED = 21
    """A rank is gone; payload: a `RankExit`. All it had written precedes this frame."""
    GONE = 22
    """The last frame: the agent has no descendant left; payload: the number of processes it had to end, and of those
    that it could not end."""
    PAUSED = 23
    """The ranks are stopped."""
    ACTIVITY = 24
    """The activity of a rank when the first one failed or was told to end. Payload: JSON of a
    `tracing.activity.ActivityDescription`."""
    EVENTS = 25
    """Events that a rank has recorded since the last such frame; see `agent.observation.unpack_events`."""
    SAMPLE = 26
    """The usage of the host's machine, by its ranks and in all: JSON; see `agent.usage`."""

    ACK = 32
    """So many bytes of output (or of stdin) have been dealt with; payload: the number."""
    SEALED = 34
    """To the agent: a frame that nobody on the way can read or change; see `sealed_frames`."""
    KEEPALIVE = 33
    """No payload: shows the other side that the connection is alive. Between hosts only."""
    SHIPMENT = 38
    """To a host that is being prepared, before there is an agent: a piece of the answer to what it has asked for."""
    CLOCK = 36
    """To the agent: the launcher's time in nanoseconds. From it: the same, and the time on its host."""
    STACK = 37
    """To the agent: what are the threads of that process doing? From it: the answer, as text for people."""
    CONTROL = 35
    """A message on the control channel of a process, which the agent passes on unread; see `contract.elastic.messages`.
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
        """Take the next bytes of the stream and yield the frames they complete.

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
