"""The profile of a job: what a prediction needs to know of it, as frozen data and as a JSON object.

The JSON object is stable: members may be added, and `format` grows when one changes its meaning. All times are seconds.

    {"format": 1, "ranks": 8, "hosts": 2, "ranks_per_host": 4, "steps": 200,
     "seconds": {"step": .., "forward": .., "backward": .., "optimizer": .., "input": .., "other": ..,
                 "communication": .. or null},
     "jitter": .., "spread": .., "wire": "float32",
     "gradients": [{"bytes": .., "ready": .., "wire_bytes": .., "seconds": .. or null}, ..],
     "link": {"bits_per_s": .., "latency_s": .. or null} or null}

A timeline has it as the member "distrunProfile" of its trace, a report as the script element "distrun-profile". Where a
job could not be profiled, they have an object with nothing but why: {"missing": "no rank has told what it did"}.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from distrun.errors import UsageError

FORMAT = 1
MISSING = "missing"
"""The member that says why there is no profile."""


@dataclass(frozen=True)
class StepSeconds:
    """The parts of a step: medians over the steps, and of these the median over the ranks."""

    step: float
    """The whole step, as it was measured."""
    forward: float
    backward: float
    """The backward pass, without waiting for communication."""
    optimizer: float = 0.0
    input: float = 0.0
    """Waiting for input."""
    other: float = 0.0
    """The rest, which neither computes nor waits for input or communication."""
    communication: float | None = None
    """Waiting for communication that was not hidden behind the backward pass."""


@dataclass(frozen=True)
class Gradients:
    """A batch of gradients that is reduced by one operation."""

    bytes: float
    ready: float
    """Seconds after the begin of the backward pass."""
    wire_bytes: float
    """Its bytes in the type in which it is sent between hosts."""
    seconds: float | None = None
    """How long reducing it took, from when the last rank had it and no earlier operation was in its way."""


@dataclass(frozen=True)
class MeasuredLink:
    """The network between the hosts."""

    bits_per_s: float
    latency_s: float | None = None
    """Half a round trip."""


@dataclass(frozen=True)
class JobProfile:
    """A job as it has measured itself."""

    ranks: int
    hosts: int
    ranks_per_host: int
    steps: int
    """The steps that the medians are of."""
    seconds: StepSeconds
    jitter: float
    """The standard deviation over the steps of the time that a rank needs until its gradients are there, which is its
    waiting for input, forward and backward."""
    spread: float
    """The standard deviation of the ranks' medians of that time."""
    wire: str
    """The type in which gradients are sent between hosts."""
    gradients: tuple[Gradients, ...]
    """In the order in which they are reduced."""
    link: MeasuredLink | None = None

    @classmethod
    def from_json(cls, found: object, source: str) -> JobProfile:
        """Return the profile that a JSON object describes.

        Args:
            found: the object, as `json` gives it.
            source: where it is from, for errors.

        Raises:
            UsageError: it is no profile, or one of its members cannot be.
        """
        top = _Members(found, f"the profile in {source}")
        if (version := top.get("format")) != FORMAT:
            raise UsageError(
                f"the profile in {source} has format {version!r}, but this distrun reads format {FORMAT}: "
                "predict with the distrun that wrote it, or write it anew"
            )
        ranks, hosts = top.whole("ranks"), top.whole("hosts")
        per_host = top.whole("ranks_per_host", -(-ranks // hosts))
        if not hosts <= ranks <= hosts * per_host:
            raise UsageError(
                f"{top.what} has {ranks} ranks on {hosts} hosts with at most {per_host} each, which cannot be: "
                "write it anew"
            )
        seconds = top.members("seconds")
        link = top.members("link") if top.get("link") is not None else None
        return cls(
            ranks=ranks,
            hosts=hosts,
            ranks_per_host=per_host,
            steps=top.whole("steps", 1),
            seconds=StepSeconds(
                step=seconds.number("step"),
                forward=seconds.number("forward"),
                backward=seconds.number("backward"),
                optimizer=seconds.number("optimizer", 0.0),
                input=seconds.number("input", 0.0),
                other=seconds.number("other", 0.0),
                communication=seconds.optional("communication"),
            ),
            jitter=top.number("jitter", 0.0),
            spread=top.number("spread", 0.0),
            wire=top.word("wire", "float32"),
            gradients=tuple(_gradients(item) for item in top.list_of_members("gradients")),
            link=None if link is None else MeasuredLink(link.positive("bits_per_s"), link.optional("latency_s")),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the object that the module's docstring describes."""
        return {"format": FORMAT, **asdict(self), "gradients": [asdict(batch) for batch in self.gradients]}


def _gradients(item: _Members) -> Gradients:
    size = item.number("bytes")
    return Gradients(size, item.number("ready"), item.number("wire_bytes", size), item.optional("seconds"))


class _Members:
    """The members of a JSON object, each checked when it is asked for."""

    def __init__(self, found: object, what: str) -> None:
        if not isinstance(found, Mapping):
            raise UsageError(f"{what} is {_shown(found)}, but must be an object with members: write it anew")
        self._found = found
        self.what = what

    def get(self, name: str) -> object:
        return self._found.get(name)

    def number(self, name: str, default: float | None = None) -> float:
        value = self._found.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise self._wrong(name, value, "a number >= 0")
        return float(value)

    def positive(self, name: str) -> float:
        if not (value := self.number(name)):
            raise self._wrong(name, value, "a number > 0")
        return value

    def optional(self, name: str) -> float | None:
        return None if self._found.get(name) is None else self.number(name)

    def whole(self, name: str, default: int | None = None) -> int:
        value = self._found.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._wrong(name, value, "a whole number >= 1")
        return value

    def word(self, name: str, default: str) -> str:
        value = self._found.get(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value, "a word")
        return value

    def members(self, name: str) -> _Members:
        return _Members(self._found.get(name), f"{name} of {self.what}")

    def list_of_members(self, name: str) -> list[_Members]:
        value = self._found.get(name)
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise self._wrong(name, value, "a list")
        return [_Members(item, f"{name}[{index}] of {self.what}") for index, item in enumerate(value)]

    def _wrong(self, name: str, value: object, allowed: str) -> UsageError:
        return UsageError(f"{name} of {self.what} is {_shown(value)}, but must be {allowed}: write the profile anew")


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:60]
