"""The hosts that a job is connecting to: the step that each has reached, and why some cannot be used."""

from __future__ import annotations

from collections.abc import Collection

from distrun.runner.decisions.failure import Failure, refused


class Connecting:
    """Hosts that become ready or are refused, each once."""

    def __init__(self, hosts: Collection[str], timeout: float) -> None:
        """`timeout` is that of --start-timeout, for the user."""
        self._steps = dict.fromkeys(hosts, "")
        self._timeout = timeout
        self._refusals: dict[str, str] = {}
        self._status = 0

    @property
    def hosts(self) -> Collection[str]:
        """The hosts that have not answered yet."""
        return self._steps.keys()

    @property
    def failure(self) -> Failure | None:
        """One failure for all hosts that cannot be used. None = there are none so far."""
        return refused(self._refusals, self._status) if self._refusals else None

    def note_step(self, host: str, step: str) -> None:
        """Note what begins on a host, such as `logging in as me`."""
        if host in self._steps:
            self._steps[host] = step

    def answered(self, host: str) -> bool:
        """Note that a host is ready or refused, and return whether it was waited for."""
        return self._steps.pop(host, None) is not None

    def refuse(self, host: str, reason: str, status: int = 2) -> None:
        """Note that a host cannot be used, though it may have been ready. Status 2 wins: the user can correct that."""
        self._steps.pop(host, None)
        self._refusals[host] = reason
        self._status = 2 if 2 in (status, self._status) else status

    def time_out(self) -> None:
        """Refuse the hosts that have not answered, because they took too long. They stay among `hosts`."""
        limit = f"the {self._timeout:g} s of --start-timeout"
        for host, step in self._steps.items():
            late = f"{step} took longer than {limit}" if step else f"its turn did not come within {limit}"
            self._refusals[host] = f"{late}: allow more, or see what 'distrun doctor -H {host}' says"
            self._status = 2
