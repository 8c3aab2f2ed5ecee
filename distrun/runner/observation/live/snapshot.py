"""The state of a job at a moment, as plain data for viewers, made from the model. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from distrun.runner.observation.model.model import Model, Rank
from distrun.runner.observation.model.seconds import RankSecond
from distrun.runner.observation.model.stragglers import COMPUTE
from distrun.tracing.activity import Activity
from distrun.tracing.layout import INPUT, OPTIMIZER

_LONG_WAIT = 2.0
"""Seconds after which a rank's activity is shown."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class TimeShares:
    """The shares of a rank's time in the last seconds. Their sum is 1."""

    compute: float = 0.0
    input: float = 0.0
    waiting: float = 0.0
    """Waiting for other ranks."""
    moving: float = 0.0
    optimizer: float = 0.0
    other: float = 0.0


@dataclass(frozen=True)
class RankView:
    """The state of a rank."""

    rank: int
    host: str
    steps: int = 0
    steps_per_second: float | None = None
    samples_per_second: float | None = None
    shares: TimeShares | None = None
    """None = nothing is known."""
    waits_for: int | None = None
    """The rank that it waited for most, if it waited."""
    cpu: float | None = None
    """Percent of one core."""
    memory: int | None = None
    """Bytes."""
    gpu: float | None = None
    """Percent."""
    gpu_memory: int | None = None
    doing: str = ""
    """Its activity, if that has lasted for long: `waiting for its next batch`."""
    line: str = ""
    """The last line of its output."""
    doing_for: float = 0.0
    """Seconds that the activity `doing` has lasted."""
    is_heard: bool = True
    """Whether it has sent any event, as ranks do after `init()`."""
    is_gone: bool = False
    """Whether its process has ended."""


@dataclass(frozen=True)
class HostView:
    """The usage of a host: `cpu` and `memory` in percent, `received` and `sent` in bytes per second."""

    host: str
    cpu: float
    memory: float
    received: float
    sent: float
    is_silent: bool = False
    """Whether its agent has sent nothing for long."""


@dataclass(frozen=True)
class Slow:
    """A rank that the others wait for."""

    rank: int
    sentence: str
    stands: bool
    """Whether it has been slow for half a minute."""


@dataclass(frozen=True)
class Snapshot:
    """The state of a job."""

    job: str
    command: str
    size: int
    seconds: float
    """Seconds since the start of the job."""
    seconds_left: float | None = None
    """Seconds until the end of rank 0's progress bar, if it draws one."""
    ranks: Sequence[RankView] = ()
    hosts: Sequence[HostView] = ()
    slow: Sequence[Slow] = ()
    bars: int = 0
    """The number of other ranks that draw progress bars."""
    status: int | None = None
    """The exit status. None = the job runs."""
    texts: Sequence[str] = ()
    """Answers to this viewer's requests."""

    @property
    def steps_per_second(self) -> float | None:
        """The median of the rates of the ranks that run."""
        there = [rank for rank in self.ranks if not rank.is_gone]
        rates = sorted(rank.steps_per_second for rank in there if rank.steps_per_second is not None)
        return rates[len(rates) // 2] if rates else None

    @property
    def samples_per_second(self) -> float | None:
        """The sum of the rates of its ranks."""
        rates = [rank.samples_per_second for rank in self.ranks if rank.samples_per_second is not None]
        return sum(rates) if rates else None

    def to_json(self) -> str:
        """Return the snapshot as a line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str | bytes) -> Snapshot:
        """Return the snapshot that `to_json` wrote."""
        raw: dict[str, Any] = json.loads(line)
        raw["ranks"] = tuple(
            RankView(**(one | {"shares": one["shares"] and TimeShares(**one["shares"])})) for one in raw["ranks"]
        )
        raw["hosts"] = tuple(HostView(**one) for one in raw["hosts"])
        raw["slow"] = tuple(Slow(**one) for one in raw["slow"])
        raw["texts"] = tuple(raw["texts"])
        return cls(**raw)


def snapshot(model: Model, job: str, command: str, size: int, seconds: float, status: int | None = None) -> Snapshot:
    """Return the current state of the job from its model."""
    ranks = {number: rank for number, rank in sorted(model.ranks.items()) if number >= 0}
    first = ranks.get(0)
    names = (*(rank.host for rank in ranks.values()), *model.hosts)
    hosts = {name: model.hosts[name] for name in names if name in model.hosts}
    return Snapshot(
        job=job,
        command=command,
        size=size,
        seconds=seconds,
        seconds_left=None if first is None else first.output.seconds_left,
        ranks=[_rank(model, number, rank) for number, rank in ranks.items()],
        hosts=[
            HostView(name, host.cpu, host.memory, host.received_lately, host.sent_lately, host.is_silent(model.now))
            for name, host in hosts.items()
        ],
        slow=[Slow(one.rank, one.sentence, one.stands) for one in model.stragglers],
        bars=sum(rank.output.is_bar for number, rank in ranks.items() if number),
        status=status,
    )


def _rank(model: Model, number: int, rank: Rank) -> RankView:
    recent = model.recent(number)
    gpu = rank.gpu or {}
    memory = gpu.get("memory")
    doing, doing_for = _doing(model, rank)
    return RankView(
        rank=number,
        host=rank.host,
        steps=rank.account.steps,
        steps_per_second=model.steps_per_second(number),
        samples_per_second=model.samples_per_second(number),
        shares=_shares(recent) if recent.length else None,
        is_heard=rank.account.heard_until > 0,
        is_gone=rank.account.is_gone,
        waits_for=max(recent.waiting, key=recent.waiting.__getitem__, default=None),
        cpu=rank.cpu,
        memory=rank.memory,
        gpu=gpu.get("use"),
        gpu_memory=None if memory is None else int(memory),
        doing=doing,
        doing_for=doing_for,
        line=_CONTROL.sub(" ", rank.output.last_line)[:400],
    )


def _shares(recent: RankSecond) -> TimeShares:
    states = {state: seconds / recent.length for state, seconds in recent.states.items()}
    compute = sum(states.get(state, 0.0) for state in COMPUTE)
    known = {
        "compute": compute,
        "input": states.get(INPUT, 0.0),
        "waiting": sum(recent.waiting.values()) / recent.length,
        "moving": recent.moving / recent.length,
        "optimizer": states.get(OPTIMIZER, 0.0),
    }
    return TimeShares(**known, other=max(0.0, 1.0 - sum(known.values())))


def _doing(model: Model, rank: Rank) -> tuple[str, float]:
    account = rank.account
    if account.is_gone or not account.heard_until:
        return "", 0.0
    since = account.waits_since if account.waits_for else max(account.since, account.active_at)
    told = Activity(account.state, since, account.waits_for, account.steps).describe(model.now)
    if told is None or told.seconds < _LONG_WAIT:
        return "", 0.0
    return told.what, told.seconds
