"""Discovery of hosts: a thread runs the user's script, which lists the hosts that may be used now, every second.

It prints a line for each host, as Horovod's discovery scripts do: `NAME` or `NAME:SLOTS`, or anything else that `-H`
takes as an entry. `#` begins a comment.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from distrun.errors import UsageError
from distrun.runner.decisions.events import Event, HostsFound
from distrun.runner.elastic.host_list import HostList
from distrun.runner.planning.hosts import Host, merge, parse_host_list

INTERVAL = 1.0  # seconds from one run to the next
TIMEOUT = 30.0  # seconds that a run may take
_LAST_WORDS = 300  # characters of the stderr of a script that fails


class HostSource(Protocol):
    """A source of the hosts that may be used now."""

    def start(self, post: Callable[[Event], None], say: Callable[[str], None]) -> None:
        """Start watching the hosts.

        Args:
            post: called with `HostsFound` at first and when the list has changed.
            say: called with errors, for the user.
        """

    def close(self) -> None:
        """Stop."""

    def list_hosts(self) -> list[Host]:
        """Return the hosts that may be used now. Raises UsageError: they cannot be listed."""


class Discovery:
    """Runs the script every second, and posts changes."""

    def __init__(self, script: str, hosts: HostList, interval: float = INTERVAL, timeout: float = TIMEOUT) -> None:
        """`script` is a path, or a command line for the shell. A run may take `timeout` seconds."""
        self._script = script
        self._hosts = hosts
        self._interval = interval
        self._timeout = timeout
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._first: list[Host] | None = None

    def check(self) -> None:
        """Run the script for the first time. Raises UsageError, as `list_hosts` does."""
        self._first = self.list_hosts()

    def start(self, post: Callable[[Event], None], say: Callable[[str], None]) -> None:
        """Start the thread, which posts `HostsFound` at first and after changes. An error that repeats is said once."""
        self._thread = threading.Thread(target=self._watch, args=(post, say), name="distrun discovery", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread. A run in progress is killed."""
        self._stopped.set()
        with self._lock:
            if self._running is not None:
                _kill(self._running)
        if self._thread is not None:
            self._thread.join()

    def list_hosts(self) -> list[Host]:
        """Run the script once and return the hosts that it lists.

        Raises:
            UsageError: it cannot be run, fails, takes too long, or prints something else.
        """
        return parse_listing(self._output(), self._script)

    def _watch(self, post: Callable[[Event], None], say: Callable[[str], None]) -> None:
        listed: list[Host] | None = None
        problem = ""
        first = self._first
        while not self._stopped.is_set():
            try:
                hosts, first = self.list_hosts() if first is None else first, None
                if hosts != listed:
                    post(HostsFound(self._hosts.add(hosts)))
                listed, problem = hosts, ""
            except UsageError as error:  # the last valid list stays in use
                if str(error) != problem and not self._stopped.is_set():
                    problem = str(error)
                    say(f"{problem}; the last list of hosts stays")
            self._stopped.wait(self._interval)

    def _output(self) -> str:
        with self._lock:
            if self._stopped.is_set():
                return ""
            try:
                self._running = process = subprocess.Popen(
                    [self._script] if os.path.isfile(self._script) else ["/bin/sh", "-c", self._script],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:
                raise UsageError(f"--hosts-from {self._script!r} cannot be run: {error.strerror}") from None
        with process:  # it closes the pipes and reaps the process
            try:
                said, complaint = process.communicate(timeout=self._timeout)
            except BaseException as error:
                _kill(process)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise  # Ctrl-C
                raise UsageError(f"--hosts-from {self._script!r} took longer than {self._timeout:g} s") from None
            finally:
                with self._lock:
                    self._running = None
        if process.returncode:
            words = complaint.decode(errors="replace").strip()[-_LAST_WORDS:]
            raise UsageError(
                f"--hosts-from {self._script!r} failed with status {process.returncode}"
                f"{': ' if words else ''}{' '.join(words.split())}"
            )
        return said.decode(errors="replace")


def parse_listing(text: str, script: str) -> list[Host]:
    """Return the hosts in the output `text` of a script. There may be none.

    Raises:
        UsageError: a line does not name a host.
    """
    hosts: list[Host] = []
    for line in text.splitlines():
        if entry := line.partition("#")[0].strip():
            try:
                hosts += parse_host_list(entry)
            except UsageError as error:
                raise UsageError(f"--hosts-from {script!r} printed {line!r}: {error}") from None
    return merge(hosts)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a run with all processes that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
