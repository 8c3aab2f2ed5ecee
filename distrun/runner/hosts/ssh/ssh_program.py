"""Running a module of distrun on another host, in a channel of an SSH connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from shlex import quote

from paramiko import Channel, Transport
from paramiko.ssh_exception import SSHException

from distrun.runner.hosts.program import remote_command
from distrun.runner.protocol.handshake import HostError, explain_failed_start
from distrun.runner.shipping.delivery import Opening

_EXIT_TIMEOUT = 2.0  # seconds from the end of the output to the exit status


class SshProgram:
    """A module of distrun on another host. See `distrun.runner.hosts.program.Program` for the interface.

    Its stdin closes when the connection does. Several programs may share the connection, which the caller closes.
    """

    def __init__(self, transport: Transport, python: str, module: str, timeout: float, opening: Opening) -> None:
        """Start the module by that host's `python`. The host may take `timeout` seconds to open a channel.

        Raises:
            HostError: the host does not start programs.
        """
        self.python = python
        self._transport = transport
        try:
            self._channel: Channel = transport.open_session(timeout=timeout)
            self._channel.settimeout(timeout)
            self._channel.exec_command(shell_command(python, module, opening.code))
            self._send(opening.text)
        except (SSHException, EOFError, OSError) as error:
            raise HostError(f"no program can be started there: {str(error) or type(error).__name__}") from None

    def _send(self, text: bytes) -> None:
        """Send the start of its input.

        If the program has ended already, because there is no such Python, that is not an error: the next read returns
        the end of its output, and `explain_start` the reason.
        """
        try:
            self._channel.sendall(text)
        except TimeoutError:
            raise
        except OSError:
            if not self._channel.closed:
                raise

    def write(self, data: bytes) -> None:
        """Send all of the data to its stdin."""
        with _os_errors():
            self._channel.sendall(data)

    def end_input(self) -> None:
        """Close its stdin."""
        with suppress(SSHException, EOFError, OSError):
            self._channel.shutdown_write()

    def read(self, timeout: float | None) -> bytes:
        """Return the next bytes from its stdout."""
        with _os_errors():
            self._channel.settimeout(timeout)
            return self._channel.recv(1 << 20)

    def wait(self) -> int:
        """Wait for its exit and return the exit status, -1 if the host does not send one."""
        return self._channel.exit_status if self._channel.status_event.wait(_EXIT_TIMEOUT) else -1

    def stderr(self) -> str:
        """Return what it and the login shell have written to stderr since the last call."""
        data = b""
        while self._channel.recv_stderr_ready():
            data += self._channel.recv_stderr(1 << 16)
        return data.decode(errors="replace")

    def explain_start(self, output: bytes) -> str:
        """Return the reason why it ended before its first frame."""
        status = self.wait()
        if status < 0 and not self._transport.is_active():
            return "the connection was lost while distrun started there"
        return explain_failed_start(status, output.decode(errors="replace") + self.stderr(), self.python)

    def kill(self) -> None:
        """Close the channel and so its stdin. A program that ignores that continues."""
        self._channel.close()

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


def shell_command(python: str, module: str, code: str) -> str:
    """Return the command line that runs a module of distrun, for any login shell."""
    command, *rest = remote_command(python, module, code)
    # `~` must not be quoted: the shell of the other host replaces it by the home directory there.
    home, command = ("~/", command[2:]) if command.startswith("~/") else ("", command)
    return f"exec {home}{quote(command)} {' '.join(map(quote, rest))}"


@contextmanager
def _os_errors() -> Iterator[None]:
    """Turn paramiko's errors into OSError, so that callers need not know paramiko."""
    try:
        yield
    except (SSHException, EOFError) as error:
        raise ConnectionError(str(error) or type(error).__name__) from None
