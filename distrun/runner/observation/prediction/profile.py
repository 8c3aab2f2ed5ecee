"""The profile of a job: the measurements that a prediction needs, as frozen data and as a JSON object.

The JSON object is stable: members may be added, and `format` grows when one changes its meaning. Times are in seconds.

    {"format": 1, "ranks": 8, "hosts": 2, "ranks_per_host": 4, "steps": 200,
     "seconds": {"step": .., "forward": .., "backward": .., "optimizer": .., "input": .., "other": ..,
                 "communication": .. or null},
     "jitter": .., "spread": .., "wire": "float32",
     "gradients": [{"bytes": .., "ready": .., "wire_bytes": .., "seconds": .. or null}, ..],
     "link": {"bits_per_s": .., "latency_s": .. or null} or null}

A timeline has it as the member "distrunProfile" of its trace, a report as the script element "distrun-profile". If a
job could not be profiled, they have an object with only the reason: {"missing": "no rank has told what it did"}.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from distrun.errors import UsageError

FORMAT = 1
MISSING = "missing"
"""The member with the reason why there is no profile."""


@dataclass(frozen=True)
class StepSeconds:
    """The parts of a step: for each rank the median over the steps, and then the median over the ranks."""

    step: float
    """The whole step, as measured."""
    forward: float
    backward: float
    """The backward pass, without waiting for communication."""
    optimizer: float = 0.0
    input: float = 0.0
    """Waiting for input."""
    other: float = 0.0
    """The rest: neither computing, nor waiting for input or communication."""
    communication: float | None = None
    """Waiting for communication that did not overlap with the backward pass."""


@dataclass(frozen=True)
class Gradients:
    """A batch of gradients that is reduced by one operation."""

    bytes: float
    ready: float
    """Seconds from the start of the backward pass until it is ready."""
    wire_bytes: float
    """Its bytes in the type that is sent between hosts."""
    seconds: float | None = None
    """The time of reducing it, from when the last rank had submitted it and the previous operation was done."""


@dataclass(frozen=True)
class MeasuredLink:
    """The network between the hosts."""

    bits_per_s: float
    latency_s: float | None = None
    """Half a round trip."""


@dataclass(frozen=True)
class JobProfile:
    """The measurements of a job."""

    ranks: int
    hosts: int
    ranks_per_host: int
    steps: int
    """The number of steps behind the medians."""
    seconds: StepSeconds
    jitter: float
    """The standard deviation over the steps of the time until a rank's gradients are ready: waiting for input, forward
    and backward.
    """
    spread: float
    """The standard deviation of the ranks' medians of the same time."""
    wire: str
    """The type of gradients between hosts."""
    gradients: tuple[Gradients, ...]
    """The batches, in the order of their reduction."""
    link: MeasuredLink | None = None

    @classmethod
    def from_json(cls, found: object, source: str) -> JobProfile:
        """Return the profile in the JSON object `found`.

        Args:
            found: the object, as parsed by `json`.
            source: the name of its file, for errors.

        Raises:
            UsageError: it is not a profile, or a member has an impossible value.
        """
        top = _Members(found, f"the profile in {source}")
        if (version := top.get("format")) != FORMAT:
            raise UsageError(
                f"the profile in {source} has format {version!r}, but this distrun reads format {FORMAT}: "
                "predict with the distrun that wrote it, or write it again"
            )
        ranks, hosts = top.whole("ranks"), top.whole("hosts")
        per_host = top.whole("ranks_per_host", -(-ranks // hosts))
        if not hosts <= ranks <= hosts * per_host:
            raise UsageError(
                f"{top.what} has {ranks} ranks on {hosts} hosts with at most {per_host} each, which cannot be: "
                "write it again"
            )
        seconds = top.members("seconds")
        link = top.members("link") if top.get("link") is not None else None
        return cls(
            ranks=ranks,
            hosts=hosts,
            ranks_per_host=per_host,
            steps=top.whole("steps", 1),
            seconds=StepSeconds(
                **{name: seconds.number(name) for name in ("step", "forward", "backward")},
                **{name: seconds.number(name, 0.0) for name in ("optimizer", "input", "other")},
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
        return {"format": FORMAT, **asdict(self)}


def _gradients(item: _Members) -> Gradients:
    size = item.number("bytes")
    return Gradients(size, item.number("ready"), item.number("wire_bytes", size), item.optional("seconds"))


class _Members:
    """The members of a JSON object, each checked when it is read."""

    def __init__(self, found: object, what: str) -> None:
        if not isinstance(found, Mapping):
            raise UsageError(f"{what} is {_shown(found)}, but must be an object with members: write it again")
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
        return UsageError(f"{name} of {self.what} is {_shown(value)}, but must be {allowed}: write the profile again")


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:60]
