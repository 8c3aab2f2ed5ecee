"""The hosts of an elastic job or a sweep: which are listed, which have an agent, and when to try the others again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from distrun.runner.decisions.backoff import backoff

RETRY = (10.0, 60.0)  # seconds until a host that cannot be used is tried again: the first time, and at most


@dataclass
class Away:
    """The last failure of a host that has not worked since."""

    reason: str
    failures: int
    """In a row."""
    retry: float | None
    """The time of the next try. None = not before it is certain that nothing of the job is left there."""


class Hosts:
    """The state of each host, except its processes, which `Processes` has."""

    def __init__(self, slots: Mapping[str, int], start_timeout: float, retry: tuple[float, float] = RETRY) -> None:
        """
        Args:
            slots: host -> slots. The first hosts are used first.
            start_timeout: seconds until a host must be ready.
            retry: seconds until a host is tried again: the first time, and at most. They double each time.
        """
        self.slots = dict(slots)
        """host -> slots, of the hosts that are listed, in their order"""
        self.has_shrunk = False
        """Whether a host ever had more slots than now, so that processes may be in slots that are not listed."""
        self.ready: dict[str, None] = {}
        """The hosts that have an agent, listed or not."""
        self.connecting: dict[str, float] = {}
        """host -> the deadline for it to be ready, in this order"""
        self.steps: dict[str, str] = {}
        """host -> the step that the connection has reached"""
        self.away: dict[str, Away] = {}
        self.uncertain: dict[str, float] = {}
        """host whose agent is lost -> the time until which something of the job may still run there"""
        self.over = ""
        """The reason why no host can ever be connected to again. Empty = hosts can."""
        self.releasing: set[str] = set()
        """The hosts whose agents were asked to leave and have not left yet."""
        self._start_timeout = start_timeout
        self._retry = retry

    def is_usable(self, host: str) -> bool:
        """Whether processes may be started there."""
        return host in self.ready and host in self.slots and host not in self.releasing

    def found(self, slots: Mapping[str, int]) -> bool:
        """Note the slots of the hosts that are listed now, and return whether they have changed."""
        if self.slots == slots:
            return False
        for host in slots.keys() - self.slots.keys():
            if host not in self.uncertain:
                self.away.pop(host, None)  # it may be another machine with the same name
        self.has_shrunk |= any(slots.get(host, 0) < before for host, before in self.slots.items())
        self.slots = dict(slots)
        return True

    def to_connect(self, slots: float, now: float) -> list[str]:
        """Return the hosts to connect to now, so that there are `slots` slots, and note that they are connected to.

        Hosts that never failed come first. A host that has failed counts only when it is ready, so that others are
        tried meanwhile.
        """
        if self.over:
            return []
        missing = slots - sum(self.slots[host] for host in self.ready if self.is_usable(host))
        missing -= sum(self.slots.get(host, 0) for host in self.connecting if host not in self.away)
        chosen = []
        for host in sorted(self.slots, key=self._failures):
            if missing <= 0:
                break
            if host in self.ready or host in self.connecting or host in self.uncertain:
                continue
            away = self.away.get(host)
            if away is None:
                missing -= self.slots[host]
            elif away.retry is None or away.retry > now:
                continue
            self.connecting[host] = now + self._start_timeout
            chosen.append(host)
        return chosen

    def next_retry(self, now: float) -> float | None:
        """Return the earliest time after `now` when a host may be tried again, None if no host waits."""
        times = (away.retry for host, away in self.away.items() if host in self.slots)
        return min((time for time in times if time is not None and time > now), default=None)

    def missing(self) -> dict[str, str]:
        """Return the hosts that are listed and cannot be used, with the reasons."""
        return {h: away.reason for h, away in self.away.items() if h in self.slots and h not in self.ready}

    def is_ready(self, host: str) -> None:
        """Note that a host has an agent."""
        self.connecting.pop(host, None)
        self.ready[host] = None

    def refused(self, host: str, reason: str, now: float) -> float:
        """Note that a host cannot be used now, and return the time of the next try."""
        self.connecting.pop(host, None)
        self.left(host)
        failures = self._failures(host) + 1
        retry = now + backoff(*self._retry, failures)
        self.away[host] = Away(reason, failures, retry)
        return retry

    def works(self, host: str) -> None:
        """Note that processes work on a host, so that earlier failures to reach it are forgotten."""
        self.away.pop(host, None)

    def lost(self, host: str, reason: str, until: float, now: float) -> None:
        """Note that a host's agent is lost, and that processes may still run there until the time `until`."""
        self.refused(host, reason, now)
        self.uncertain[host] = until
        self.away[host].retry = None

    def certain(self, host: str, now: float) -> None:
        """Note that nothing of the job is left on a host whose agent was lost."""
        self.uncertain.pop(host, None)
        away = self.away.get(host)
        if away is not None and away.retry is None:
            # The first loss in a row is retried at once: waiting for certainty has taken some time already.
            away.retry = now + (0.0 if away.failures == 1 else backoff(*self._retry, away.failures - 1))

    def left(self, host: str) -> None:
        """Note that a host's agent has left."""
        self.ready.pop(host, None)
        self.releasing.discard(host)

    def _failures(self, host: str) -> int:
        return self.away[host].failures if host in self.away else 0
