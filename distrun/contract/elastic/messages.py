"""The messages on the control channel between the launcher and a process of an elastic job.

The channel is a Unix socket of the type SOCK_SEQPACKET, whose descriptor DISTRUN_CONTROL_FD names; its other end is the
agent's, which passes each message on unread, in a CONTROL frame. A message is one JSON object with the class's name and
its fields. The kernel takes no message that is longer than its buffer, 200 KB, so long ones travel in pieces: all but
the last begin with `+`, and the last of several with `.`.

A process of an elastic job is, in the order of its life:

    a spare       it has imported what the ranks have imported, and waits to be activated
    a newcomer    it runs the script up to `init` or `elastic.run`, where it waits to be assigned a rank
    a member      it has a rank in the present generation; *enrolled* once it is in `elastic.run`: then it survives
                  the end of the generation, and waits for the next. Any other member is killed, and started again
    finished      its training function has returned, on this rank and on all others: there are no more generations
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from distrun.contract.elastic.variables import (
    CONTROL_FD as CONTROL_FD,
    CPU_SLOT as CPU_SLOT,
    PROCESS as PROCESS,
    SCRATCH as SCRATCH,
    SPARE as SPARE,
    TRIAL as TRIAL,
    TRIAL_FD as TRIAL_FD,
    TRIAL_PRUNES as TRIAL_PRUNES,
)

PIECE = 1 << 16
"""Bytes of a piece, at most, without its mark."""


@dataclass(frozen=True)
class Preload:
    """To a spare: import these modules, those that there are, and say that you are warm."""

    modules: list[str]


@dataclass(frozen=True)
class Activate:
    """To a spare: run the script. Its place is provisional, as a newcomer's."""

    environ: dict[str, str]
    """The variables that it would have been started with."""
    program: list[str] = field(default_factory=list)
    """The program and its arguments, without the interpreter; none = those that the spare was started for."""


@dataclass(frozen=True)
class Assignment:
    """To newcomers and members: join this generation now; the one before, if you are in it, is over."""

    generation: int
    environ: dict[str, str]
    """The variables that tell the rank its place: the launch contract, and those that scripts of others read."""
    reason: str
    """Why there is a new generation, a sentence without a full stop: `rank 1 on h2 was killed by SIGKILL`."""


@dataclass(frozen=True)
class Prepare:
    """To members: leave the generation at your next step boundary, and say that you wait. A rank that leaves at one has
    done all that the others need to reach the same one."""

    generation: int
    reason: str


@dataclass(frozen=True)
class Warm:
    """From a spare: it has imported everything."""


@dataclass(frozen=True)
class Activated:
    """From a spare of a sweep: it is a rank now, and its end is the script's."""


@dataclass(frozen=True)
class Waiting:
    """From a newcomer or a member: it is in no generation, and waits to be assigned a place in a later one."""

    generation: int
    """The generation that it has left; 0: none, it is new."""
    reason: str = ""
    """Why it left: the text of the error that it met, or that of `Prepare`; empty if it is new."""


@dataclass(frozen=True)
class Joined:
    """From a member: all ranks of the generation have met."""

    generation: int


@dataclass(frozen=True)
class Imported:
    """From a member that has joined for the first time: what spares should import, if its script never enrols."""

    modules: list[str]
    """As in `Enrolled`."""
    is_training: bool = False
    """Whether the script has come so far that it will not enrol: spares may be started at once."""


@dataclass(frozen=True)
class Enrolled:
    """From a member: it is in `elastic.run`, for the first time."""

    modules: list[str] = field(default_factory=list)
    """The modules that it has imported and a spare should: importable by name, and not the user's own."""


@dataclass(frozen=True)
class Finished:
    """From a member: the training function has returned on all ranks."""


@dataclass(frozen=True)
class Ending:
    """From a member: its script has come to its end, and the interpreter is about to exit, which may take a while."""

    error: str = ""
    """The exception that has ended it, `RuntimeError: out of data`, so that it takes part in no generation any more;
    empty: none has, and the status is not known yet, for it may have been `sys.exit(3)`."""
    site: str = ""
    """The line of the script that raised it: `train.py:19 in train`; empty: it is not known."""
    step: int = 0
    """The number of steps that the process had done."""


@dataclass(frozen=True)
class Report:
    """From rank 0 of a trial of a sweep: how well it does at present."""

    number: int
    """Counts the reports of the trial, from 1."""
    value: float
    step: float


@dataclass(frozen=True)
class Verdict:
    """To all ranks of a trial that may be pruned: whether it goes on."""

    number: int
    """The number of the report that this answers, on all ranks; there are no verdicts on earlier ones to come."""
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
    """Return a message as it travels if it is short."""
    return json.dumps([type(message).__name__, vars(message)], separators=(",", ":")).encode("ascii")


def encode_pieces(message: Message) -> list[bytes]:
    """Return a message as it travels, in one piece or several."""
    text = encode(message)
    if len(text) <= PIECE:
        return [text]
    pieces = [b"+" + text[start : start + PIECE] for start in range(0, len(text), PIECE)]
    return [*pieces[:-1], b"." + pieces[-1][1:]]


class Joiner:
    """Puts the pieces of messages together, of one sender."""

    def __init__(self) -> None:
        self._before = bytearray()

    def feed(self, piece: bytes) -> Message | None:
        """Take the next piece; return the message that it completes, None if more is to come.

        Raises:
            ValueError: it is none of ours.
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
        ValueError: it is none of ours.
    """
    try:
        kind, values = json.loads(data)
        return _KINDS[kind](**values)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{data[:60]!r} is not a message of the control channel") from error
