"""The start of a program on another host: the launcher sends what the host lacks, and waits for the first frame."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from distrun import __version__
from distrun.runner.hosts.program import Program, first_frame
from distrun.runner.protocol.frames import Frame, FrameKind
from distrun.runner.protocol.handshake import HostError
from distrun.runner.shipping.delivery import Delivery, Opening, opening_in


@dataclass
class Introduction:
    """A program's first frame, and what its host asked for before."""

    payload: bytes = b""
    """The payload of the frame."""
    early: bytes = b""
    """The bytes that arrived after the frame."""
    folders: list[str] = field(default_factory=list)
    """The folders on its host with distrun and what distrun needs. Empty = it has asked for nothing."""
    python: str = ""
    """The Python of the environment that its host has made. Empty = none was made."""
    sent: list[str] = field(default_factory=list)
    """The packages that were sent."""
    had: str = ""
    """The folder of another version of distrun that the host has. Empty = it has none."""

    @property
    def note(self) -> str:
        """A remark for the user, perhaps empty."""
        if "distrun" not in self.sent:
            return ""
        return f"has {'another distrun' if self.had else 'no distrun'}: it was sent this one, {__version__}"

    @property
    def opening(self) -> Opening:
        """The opening of further programs on this host."""
        return opening_in(self.folders)


def introduce(
    program: Program,
    delivery: Delivery,
    hello: bytes,
    deadline: float,
    on_step: Callable[[str], None] = lambda step: None,
) -> Introduction:
    """Wait for a program's first frame, and send its host what it asks for before.

    Args:
        program: a program that has just been started, with an opening of `delivery`.
        delivery: what hosts may get.
        hello: the first frame for the program. A host that asks for something gets it again after the answer.
        deadline: when to give up, as `time.monotonic()`.
        on_step: is called with what happens on the host.

    Raises:
        HostError: the frame does not come, or the host cannot be prepared.
    """
    made = Introduction()
    _write(program, hello)
    while True:
        payload, made.early = first_frame(program, deadline, made.early)
        said: dict[str, Any] = json.loads(payload)
        if "ask" in said:
            if "found" in said:
                made.had = said["found"]
            on_step(f"sending {_named(said)}")
            for piece in delivery.answer(said):
                if not _write(program, Frame(FrameKind.SHIPMENT, payload=piece).encode()):
                    break
            if said["ask"] == "package":
                made.sent.append(said["name"])
            _write(program, hello)
        elif "step" in said:
            on_step(said["step"])
        elif "paths" in said:
            made.folders = said["paths"]
            made.python = said.get("python", "")
        elif "problem" in said and "distrun" not in said:
            raise HostError(said["problem"])
        else:
            made.payload = payload
            return made


def _named(question: dict[str, Any]) -> str:
    """Return what a question asks for, in words."""
    match question["ask"]:
        case "package":
            return str(question.get("name"))
        case "contents":
            digests = question.get("digests")
            count = len(digests) if isinstance(digests, list) else 0
            return f"{count} changed file{'s' * (count != 1)}"
        case _:
            return "what to do"


def _write(program: Program, data: bytes) -> bool:
    """Send data. Return whether the program takes more."""
    with suppress(OSError):  # it has ended already: `first_frame` will raise the reason
        program.write(data)
        return True
    return False
