"""Talking to a probe, here, at the other end of an SSH connection, or in a job step of Slurm."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from paramiko import Channel, Transport
from paramiko.ssh_exception import SSHException

from distrun.runner.connect.srun import Steps
from distrun.runner.connect.ssh import remote_command
from distrun.runner.protocol.frames import FrameDecoder
from distrun.runner.protocol.handshake import HostError, explain, extract

_PROBE = "distrun.runner.doctor.probe"
_PACKAGE_ROOT = Path(__file__).resolve().parents[3]
_NOT_FOUND = 127  # the exit status of a shell that does not find a program
_STATUS_PATIENCE = 2.0  # seconds an exit status may come after the end of the output


class ConnectionSet(Protocol):
    """The standard streams of a probe."""

    def write(self, data: bytes) -> None:
        """Write it all; raises OSError when there is nobody any more."""

    def read(self, timeout: float) -> bytes:
        """Some bytes; none at their end. Raises TimeoutError, or OSError."""

    def end(self) -> tuple[int, str]:
        """After the last byte: its exit status, negative when there is none, and what it wrote on stderr."""

    def close(self) -> None:
        """Close its stdin, upon which it leaves, and let go."""


class LocalWire:
    """A probe on this machine."""

    def __init__(self) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _PROBE],
                cwd=_PACKAGE_ROOT,  # `-m` puts it first on sys.path: it finds the distrun that is found here
                env={name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for us
            )
        except OSError as error:
            raise HostError(f"Python {sys.executable!r} cannot be started: {error.strerror}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def write(self, data: bytes) -> None:
        """See `Wire`."""
        self._stdin.write(data)
        self._stdin.flush()

    def read(self, timeout: float) -> bytes:
        """See `Wire`."""
        if not select.select([self._stdout], [], [], timeout)[0]:
            raise TimeoutError
        return os.read(self._stdout.fileno(), 1 << 16)

    def end(self) -> tuple[int, str]:
        """See `Wire`."""
        return self._process.wait(_STATUS_PATIENCE), ""

    def close(self) -> None:
        """See `Wire`."""
        with suppress(OSError):
            self._stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STATUS_PATIENCE)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._stdout.close()


class SshWire:
    """A probe at the other end of an SSH connection, which it owns."""

    def __init__(self, transport: Transport, python: str, timeout: float) -> None:
        self._transport = transport
        try:
            self._channel: Channel = transport.open_session(timeout=timeout)
            self._channel.settimeout(timeout)
            self._channel.exec_command(remote_command(python, _PROBE))
        except (SSHException, EOFError, OSError) as error:
            transport.close()
            raise HostError(f"no program can be started there: {error or type(error).__name__}") from None

    def write(self, data: bytes) -> None:
        """See `Wire`."""
        self._channel.sendall(data)

    def read(self, timeout: float) -> bytes:
        """See `Wire`."""
        self._channel.settimeout(timeout)
        return self._channel.recv(1 << 16)

    def end(self) -> tuple[int, str]:
        """See `Wire`."""
        self._channel.status_event.wait(_STATUS_PATIENCE)
        data = b""
        while self._channel.recv_stderr_ready():
            data += self._channel.recv_stderr(1 << 16)
        return self._channel.exit_status, data.decode(errors="replace")

    def close(self) -> None:
        """See `Wire`."""
        with suppress(SSHException, EOFError, OSError):
            self._channel.shutdown_write()
            self._channel.status_event.wait(_STATUS_PATIENCE)
        self._transport.close()


class SrunWire:
    """A probe in a job step of Slurm, which whoever made `steps` ends."""

    def __init__(self, steps: Steps, node: str, python: str) -> None:
        self._step = steps.start(node, os.path.expanduser(python), _PROBE)
        self._early = b""

    def wait(self, timeout: float) -> bool:
        """Wait until the job step writes something or ends; False when it has done neither in time.

        Raises:
            HostError: Slurm has not started it.
        """
        try:
            self._early = self._step.read(timeout)
        except TimeoutError:
            return False
        if not self._early:
            status, words = self.end()
            if status != _NOT_FOUND and (said := self._step.last_words()) and "distrun" not in words:
                raise HostError(f"srun starts nothing there: {said}")
        return True

    def write(self, data: bytes) -> None:
        """See `Wire`."""
        self._step.write(data)

    def read(self, timeout: float) -> bytes:
        """See `Wire`."""
        early, self._early = self._early, b""
        return early or self._step.read(timeout)

    def end(self) -> tuple[int, str]:
        """See `Wire`."""
        status = self._step.wait()
        # slurmstepd: error: execve(): /no/such/python: No such file or directory
        return (_NOT_FOUND if "execve()" in self._step.last_words() else status), self._step.stderr()

    def close(self) -> None:
        """See `Wire`."""
        self._step.close()


class ProbeClient:
    """Requests to a probe and its answers, one at a time."""

    def __init__(self, wire: ConnectionSet, python: str, timeout: float) -> None:
        """Hear the probe's first words.

        Args:
            wire: leads to it; closed here when it says nothing.
            python: what was to run it, for errors.
            timeout: seconds.

        Raises:
            HostError: there is no probe.
        """
        self._wire = wire
        self._decoder = FrameDecoder()
        self._lock = threading.Lock()
        self._lost: HostError | None = None
        try:
            self.who: dict[str, Any] = self._greet(python, time.monotonic() + timeout)
        except BaseException:
            wire.close()
            raise

    def ask(self, what: str, timeout: float, **arguments: Any) -> dict[str, Any]:
        """Put a request.

        Args:
            what: the name of a method of `probe.Probe`.
            timeout: seconds.
            arguments: those of the method.

        Raises:
            HostError: it could not be met, or the probe does not answer; then it will not be asked again.
        """
        with self._lock:
            if self._lost is not None:
                raise self._lost
            try:
                found = self._exchange({"ask": what, **arguments}, time.monotonic() + timeout)
            except TimeoutError:
                self._lost = HostError(f"it did not answer the question for {what!r} within {timeout:g} s")
                raise self._lost from None
            except (SSHException, EOFError, OSError) as error:
                self._lost = HostError(f"the connection was lost: {error or type(error).__name__}")
                raise self._lost from None
        if "error" in found:
            raise HostError(found["error"])
        return found

    @property
    def is_lost(self) -> bool:
        """Whether the probe has stopped answering."""
        return self._lost is not None

    def close(self) -> None:
        """End the probe."""
        self._wire.close()

    def _exchange(self, request: dict[str, Any], deadline: float) -> dict[str, Any]:
        self._wire.write(json.dumps(request).encode("ascii") + b"\n")
        while True:
            data = self._wire.read(max(0.001, deadline - time.monotonic()))
            if not data:
                raise EOFError("the program there has ended")
            for frame in self._decoder.feed(data):
                found: dict[str, Any] = json.loads(frame.payload)
                return found

    def _greet(self, python: str, deadline: float) -> dict[str, Any]:
        stream = b""
        while (found := extract(stream)) is None:
            try:
                data = self._wire.read(max(0.001, deadline - time.monotonic()))
            except TimeoutError:
                said = f"; it wrote {stream[-200:]!r}" if stream else ""
                raise HostError(f"nothing was heard from {python} in time{said}") from None
            except (SSHException, EOFError, OSError) as error:
                raise HostError(f"the connection was lost: {error or type(error).__name__}") from None
            if not data:
                status, words = self._wire.end()
                raise HostError(explain(status, stream.decode(errors="replace") + words, python))
            stream += data
        who: dict[str, Any] = json.loads(found[0])
        return who
