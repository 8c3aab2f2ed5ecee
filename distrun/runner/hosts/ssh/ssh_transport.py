"""SSH connections, from a route to an authenticated transport. Every error becomes a sentence with a remedy.

The host's key is checked before the login. All hosts behind a jump host share one connection to it: a hundred at once
would be more than an sshd accepts before they have logged in (`MaxStartups`).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shlex
import signal
import socket
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace

from distrun.host.connections.tcp_options import limit_pauses
from distrun.runner.hosts.ssh import known_hosts
from distrun.runner.planning.ssh_config import Route
from distrun.runner.protocol.handshake import HostError

with warnings.catch_warnings():  # of cryptography, about outdated ciphers that paramiko names
    warnings.simplefilter("ignore")
    import paramiko
    from paramiko.ssh_exception import SSHException

_LONGEST_PAUSE = 6.0  # seconds between retransmissions, and so the most from the end of a cut until data flow again
_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
_RSA = ("rsa-sha2-512", "rsa-sha2-256")  # the signature algorithms of a key of type ssh-rsa
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # or its tracebacks would be printed on stderr


class SshConnections:
    """Makes the connections of one launch. Many threads may call its methods."""

    def __init__(self) -> None:
        self._jumps: dict[Route, paramiko.Transport | HostError] = {}
        self._locks: dict[Route, threading.Lock] = {}
        self._lock = threading.Lock()
        self._keys: dict[str, paramiko.PKey] = {}

    def connect(self, route: Route, on_step: Callable[[str], None] = lambda step: None) -> paramiko.Transport:
        """Return a new authenticated connection.

        Args:
            route: the way there.
            on_step: is called with the step that begins: "tcp", "host key" or "login".

        Raises:
            HostError: the host cannot be reached, its key is refused, or it refuses the login.
        """
        on_step("tcp")
        sock = self._socket(route)
        try:
            transport = paramiko.Transport(sock)
            transport.banner_timeout = transport.auth_timeout = transport.channel_timeout = route.timeout
            try:
                on_step("host key")
                self._shake_hands(transport, route)
                on_step("login")
                self._log_in(transport, route)
            except BaseException:
                transport.close()
                raise
        except (SSHException, EOFError, OSError) as error:
            sock.close()
            raise HostError(_explain_handshake(error, route)) from None
        return transport

    def close(self) -> None:
        """Close the connections to jump hosts."""
        for transport in self._jumps.values():
            if isinstance(transport, paramiko.Transport):
                transport.close()

    def _shake_hands(self, transport: paramiko.Transport, route: Route) -> None:
        known = known_hosts.lookup(route.key_name, route.known_hosts)
        options = transport.get_security_options()
        preferred = [name for key in known for name in (_RSA if key.type == "ssh-rsa" else (key.type,))]
        first = [name for name in dict.fromkeys(preferred) if name in options.key_types]
        options.key_types = (*first, *(name for name in options.key_types if name not in first))
        transport.start_client(timeout=route.timeout)
        if not transport.initial_kex_done:
            raise SSHException(f"it was not done within {route.timeout:g} s")
        key = transport.get_remote_server_key()
        known_hosts.check(route, key.get_name(), key.asbytes(), known)

    # --- the TCP connection

    def _socket(self, route: Route) -> socket.socket | paramiko.Channel:
        if route.jump is not None:
            return self._through(route.jump, route)
        if route.proxy_command is not None:
            return _ProxyCommand(route.proxy_command)
        try:
            sock = _open(route)
        except OSError as error:
            raise HostError(_explain_socket(error, route)) from None
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        limit_pauses(sock, _LONGEST_PAUSE)
        return sock

    def _through(self, jump: Route, route: Route) -> paramiko.Channel:
        try:
            transport = self._jump(jump)
        except HostError as error:
            raise HostError(f"its jump host {jump}: {error}") from None
        try:
            return transport.open_channel(
                "direct-tcpip", (route.hostname, route.port), ("127.0.0.1", 0), timeout=route.timeout
            )
        except (SSHException, EOFError, OSError) as error:
            raise HostError(
                f"the jump host {jump} cannot connect to {route.hostname} port {route.port}: {error}; "
                f"try '{route.ssh()}'"
            ) from None

    def _jump(self, jump: Route) -> paramiko.Transport:
        with self._lock:
            lock = self._locks.setdefault(jump, threading.Lock())
        with lock:
            if jump not in self._jumps:
                try:
                    self._jumps[jump] = self.connect(jump)
                except HostError as error:
                    # Kept: otherwise each host behind it would wait for the same failure, one after the other.
                    self._jumps[jump] = error
            found = self._jumps[jump]
        if isinstance(found, HostError):
            raise HostError(str(found))
        return found

    # --- the login

    def _log_in(self, transport: paramiko.Transport, route: Route) -> None:
        tried: list[str] = []
        allowed: list[str] = []
        for key, name in self._identities(route, tried):
            try:
                rest = transport.auth_publickey(route.user, key)
            except paramiko.BadAuthenticationType as error:
                allowed = list(error.allowed_types)
                tried.append(name)
                break
            except paramiko.AuthenticationException:
                tried.append(name)
                continue
            if not rest:
                return
            allowed = list(rest)
            tried.append(f"{name} (accepted, but not enough)")
            break
        if transport.is_active() and not allowed:
            allowed = _methods(transport, route.user)
        if not transport.is_authenticated():
            raise HostError(_explain_login(route, tried, allowed))

    def _identities(self, route: Route, tried: list[str]) -> list[tuple[paramiko.PKey, str]]:
        """Return the keys to try, in order: from named files, from ssh-agent, from the usual files."""
        agents = _agent_keys() if route.use_agent else []
        home = os.path.expanduser("~")
        usual = [os.path.join(home, ".ssh", name) for name in _DEFAULT_KEYS]
        if route.identities and not route.default_identities:
            usual = []
        usual = [path for path in usual if path not in route.identities and os.path.exists(path)]
        return [*self._load_all(route.identities, tried), *agents, *self._load_all(usual, tried)]

    def _load_all(self, paths: Iterable[str], tried: list[str]) -> list[tuple[paramiko.PKey, str]]:
        """Return the keys in these files. A file that cannot be read is added to `tried`."""
        found = []
        for path in paths:
            try:
                found.append((self._load(path), path))
            except Exception as error:  # of many types, from paramiko and from cryptography
                tried.append(f"{path} ({_explain_key(error)})")
        return found

    def _load(self, path: str) -> paramiko.PKey:
        with self._lock:
            if path not in self._keys:
                self._keys[path] = paramiko.PKey.from_path(path)
            return self._keys[path]


def _methods(transport: paramiko.Transport, user: str) -> list[str]:
    """Return the login methods that a host offers. It names them when it refuses a login without any."""
    try:
        transport.auth_none(user)
    except paramiko.BadAuthenticationType as error:
        return list(error.allowed_types)
    except (SSHException, EOFError, OSError):
        pass
    return []


def _open(route: Route) -> socket.socket:
    """Connect like `socket.create_connection`, to addresses of one family if the route says so."""
    family = _FAMILIES.get(route.family, socket.AF_UNSPEC)
    last: OSError | None = None
    for kind, type, protocol, _, address in socket.getaddrinfo(route.hostname, route.port, family, socket.SOCK_STREAM):
        sock = socket.socket(kind, type, protocol)
        sock.settimeout(route.timeout)
        try:
            sock.connect(address)
            return sock
        except OSError as error:
            sock.close()
            last = error
    assert last is not None
    raise last


class _ProxyCommand(socket.socket):
    """A socket to the stdin and stdout of a ProxyCommand, in a session of its own that Ctrl-C does not reach.

    Closing the socket sends the command SIGHUP, as OpenSSH does: some commands do not notice the end of their input.
    """

    def __init__(self, command: str) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(fileno=ours.detach())
        with theirs:
            self._process = subprocess.Popen(
                ["sh", "-c", f"exec {command}"], stdin=theirs.fileno(), stdout=theirs.fileno(), start_new_session=True
            )

    def close(self) -> None:
        """Close the socket, and end the command."""
        super().close()
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGHUP)


def _agent_keys() -> list[tuple[paramiko.PKey, str]]:
    if not os.environ.get("SSH_AUTH_SOCK"):
        return []
    try:
        return [(key, f"{key.get_name()} {key.comment or ''} of ssh-agent") for key in paramiko.Agent().get_keys()]
    except (SSHException, OSError):
        return []


# --- errors as sentences


def _explain_socket(error: OSError, route: Route) -> str:
    place = f"{route.hostname} port {route.port}"
    if isinstance(error, socket.gaierror):
        return f"the name {route.hostname!r} is not found; correct it, or give its HostName in ~/.ssh/config"
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return f"{place} did not answer within {route.timeout:g} s; is it up, and is there a firewall in between?"
    if error.errno == errno.ECONNREFUSED:
        return f"the connection to {place} was refused; does sshd run there, on that port (-p)?"
    return f"{place} cannot be reached: {error.strerror or error}; is it up, and is that its address?"


def _explain_handshake(error: Exception, route: Route) -> str:
    place = f"{route.hostname} port {route.port}"
    if isinstance(error, EOFError) or not str(error):
        return f"{place} closed the connection during the SSH handshake; try '{route.ssh()}'"
    if "banner" in str(error):
        return f"what answers on {place} is no SSH server, or it is too busy: {error}; try '{route.ssh()}'"
    return f"the SSH handshake with {place} failed: {error}; try '{route.ssh()}'"


def _explain_login(route: Route, tried: list[str], allowed: list[str]) -> str:
    keys = f"tried were the keys {', '.join(tried)}" if tried else "there is no key to try"
    methods = f"; it offers {', '.join(allowed)}, and distrun uses publickey" if allowed else ""
    return (
        f"{route.user} may not log in there: {keys}{methods}; give a key with -i or ssh-add, "
        f"or allow it with 'ssh-copy-id {shlex.quote(f'{route.user}@{route.name}')}'"
    )


def _explain_key(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "does not exist"
    text = str(error)
    if "encrypted" in text or "assword" in text:
        return "is encrypted: ssh-add it"
    return f"cannot be read: {text or type(error).__name__}"


def with_timeout(route: Route, timeout: float) -> Route:
    """Return the route with at most this many seconds for each step."""
    jump = None if route.jump is None else with_timeout(route.jump, timeout)
    return replace(route, timeout=min(route.timeout, timeout), jump=jump)
