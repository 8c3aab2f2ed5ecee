"""The messages on the control channel between the launcher and a process of an elastic job.

The channel is a Unix socket of the type SOCK_SEQPACKET, whose descriptor DISTRUN_CONTROL_FD names. The agent has its
other end, and passes each message on unread, in a CONTROL frame. A message is a JSON list of the class's name and an
object with its fields. The kernel accepts no message that is longer than its buffer, 200 KB, so long ones are sent in
pieces: all but the last begin with `+`, and the last of several with `.`.

A process of an elastic job is, in the order of its life:

    a spare       it imports what the ranks have imported, and waits to be activated
    a newcomer    it runs the script up to `init` or `elastic.run`, where it waits to be assigned a rank
    a member      it has a rank in the present generation. When it is in `elastic.run` it is *enrolled*: it survives the
                  end of the generation, and waits for the next. Other members are killed and started again
    finished      its training function has returned, on this rank and on all others, so no generation follows
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

PIECE = 1 << 16
"""The most bytes in a piece, without its mark."""


@dataclass(frozen=True)
class Preload:
    """To a spare: import these modules, as far as they exist, then send `Warm`."""

    modules: list[str]


@dataclass(frozen=True)
class Activate:
    """To a spare: run the script, with a provisional rank, as newcomers have."""

    environ: dict[str, str]
    """The environment variables that it would have been started with."""
    program: list[str] = field(default_factory=list)
    """The program and its arguments, without the interpreter. Empty = the ones that the spare was started for."""


@dataclass(frozen=True)
class Assignment:
    """To newcomers and members: join this generation now. The previous one is over."""

    generation: int
    environ: dict[str, str]
    """The variables of its rank: the launch contract, and variables that scripts for other launchers read."""
    reason: str
    """The reason of the new generation, a sentence without a full stop: `rank 1 on h2 was killed by SIGKILL`."""


@dataclass(frozen=True)
class Prepare:
    """To members: leave the generation at your next step boundary, then send `Waiting`.

    A rank that leaves at a boundary has done all that the others need to reach the same one.
    """

    generation: int
    reason: str


@dataclass(frozen=True)
class Warm:
    """From a spare: it has imported all modules of `Preload`."""


@dataclass(frozen=True)
class Activated:
    """From a spare of a sweep: it runs the script now, so its exit is the script's."""


@dataclass(frozen=True)
class Waiting:
    """From a newcomer or a member: it is not in a generation, and waits to be assigned a rank in a later one."""

    generation: int
    """The generation that it has left. 0: it is a newcomer."""
    reason: str = ""
    """Why it left: the text of its error, or the reason of `Prepare`. Empty in a newcomer."""


@dataclass(frozen=True)
class Joined:
    """From a member: it is connected to all ranks of the generation."""

    generation: int


@dataclass(frozen=True)
class Imported:
    """From a member that has joined for the first time: the modules for spares, in case its script never enrols."""

    modules: list[str]
    """As in `Enrolled`."""
    is_training: bool = False
    """Whether the script trains already, so that it will not enrol, and spares may be started at once."""


@dataclass(frozen=True)
class Enrolled:
    """From a member: it is in `elastic.run`, for the first time."""

    modules: list[str] = field(default_factory=list)
    """The modules that it has imported and a spare should import, too. See `imports.imported`."""


@dataclass(frozen=True)
class Finished:
    """From a member: the training function has returned on all ranks."""


@dataclass(frozen=True)
class Ending:
    """From a member: its script is at its end, and the interpreter is about to exit, which may take a while."""

    error: str = ""
    """The exception that has ended the script: `RuntimeError: out of data`. The process joins no other generation.

    Empty: there was none. The exit status is still unknown then, since the script may have called `sys.exit(3)`.
    """
    site: str = ""
    """The line of the script that raised it: `train.py:19 in train`. Empty: it is not known."""
    step: int = 0
    """The number of steps that the process had done."""


@dataclass(frozen=True)
class Report:
    """From rank 0 of a trial of a sweep: the present value of its metric."""

    number: int
    """The number of this report in the trial, from 1. 0: the value was printed, not reported."""
    value: float
    step: float


@dataclass(frozen=True)
class Verdict:
    """To all ranks of a trial that may be pruned: whether it continues."""

    number: int
    """The number of the report that this answers. No verdict on an earlier report follows."""
    goes_on: bool


Message = (
    Preload
    | Activate
    | Assignment
    | Prepare
    | Warm
    | Activated
    | Waiting
    | Joined
    | Imported
    | Enrolled
    | Finished
    | Ending
    | Report
    | Verdict
)

_KINDS: dict[str, type[Message]] = {
    kind.__name__: kind
    for kind in (
        *(Preload, Activate, Assignment, Prepare, Warm, Waiting, Joined, Imported, Enrolled, Finished, Ending),
        *(Activated, Report, Verdict),
    )
}


def encode(message: Message) -> bytes:
    """Return the encoding of a short message, which is one piece."""
    return json.dumps([type(message).__name__, vars(message)], separators=(",", ":")).encode("ascii")


def encode_pieces(message: Message) -> list[bytes]:
    """Return the encoding of a message, in one piece or several."""
    text = encode(message)
    if len(text) <= PIECE:
        return [text]
    pieces = [b"+" + text[start : start + PIECE] for start in range(0, len(text), PIECE)]
    return [*pieces[:-1], b"." + pieces[-1][1:]]


class Joiner:
    """Joins the pieces of one sender's messages."""

    def __init__(self) -> None:
        self._before = bytearray()

    def feed(self, piece: bytes) -> Message | None:
        """Take the next piece, and return the message that it completes, None if more pieces follow.

        Raises:
            ValueError: it is not a message of the channel.
        """
        if piece.startswith((b"+", b".")):
            self._before += piece[1:]
            if piece.startswith(b"+"):
                return None
            piece = bytes(self._before)
            self._before.clear()
        return decode(piece)


def decode(data: bytes) -> Message:
    """Return the message that `encode` encoded.

    Raises:
        ValueError: it is not a message of the channel.
    """
    try:
        kind, values = json.loads(data)
        return _KINDS[kind](**values)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{data[:60]!r} is not a message of the control channel") from error
