"""The way to reach a host by SSH: reads flags and ~/.ssh/config into a frozen route. Nothing here connects."""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from distrun.errors import UsageError
from distrun.host.numerals import whole_number
from distrun.runner.planning.hosts import Host

if TYPE_CHECKING:
    from paramiko import SSHConfig

_UNDERSTOOD = (
    *("AddressFamily", "ConnectTimeout", "GlobalKnownHostsFile", "HostKeyAlias", "HostName", "IdentitiesOnly"),
    *("IdentityAgent", "IdentityFile", "Port", "ProxyCommand", "ProxyJump", "StrictHostKeyChecking", "User"),
    "UserKnownHostsFile",
)
_MAX_INCLUDES = 16  # files within files, as in OpenSSH
# worker   me@worker:2222   [fe80::1]:22   ssh://me@worker:22
_HOP = re.compile(r"(?:ssh://)?(?:(?P<user>[^@\s]+)@)?(?:\[(?P<v6>[^\]]+)\]|(?P<name>[^:@/\s]+))(?::(?P<port>\d+))?/?")


@dataclass(frozen=True)
class SshOptions:
    """The flags that concern SSH."""

    port: int | None = None
    identity: str | None = None
    options: tuple[str, ...] = ()
    """`KEY=VALUE` as after `ssh -o`. They take precedence over ~/.ssh/config."""
    accept_new: bool = False
    """Whether the key of a host never seen before is accepted and added to known_hosts."""
    python: str | None = None
    """The Python of the remote hosts. None = the path of the launcher's own."""
    keepalive: float = 15.0
    """Seconds without an answer after which a connection counts as dead. 0 = never."""
    connect_timeout: float = 10.0

    @property
    def arguments(self) -> list[str]:
        """These flags as the program ssh takes them."""
        options = [*self.options, *(["StrictHostKeyChecking=accept-new"] if self.accept_new else [])]
        return [
            *([] if self.port is None else ["-p", str(self.port)]),
            *([] if self.identity is None else ["-i", os.path.abspath(self.identity)]),
            *(word for option in options for word in ("-o", option)),
        ]


@dataclass(frozen=True)
class Route:
    """The way to one host."""

    name: str
    """The host as the user names it."""
    hostname: str
    port: int = 22
    user: str = ""
    identities: tuple[str, ...] = ()
    """Private keys that the user named. They are tried first."""
    default_identities: bool = True
    """Whether ~/.ssh/id_* are tried too."""
    use_agent: bool = True
    known_hosts: tuple[str, ...] = ()
    """The files of known hosts. New keys are added to the first."""
    key_name: str = ""
    """The name of the host in these files."""
    strict: str = "yes"
    """`yes`: keys must be known. `accept-new`: unknown ones are accepted. `no`: changed ones too."""
    timeout: float = 10.0
    family: str = "any"
    jump: Route | None = None
    proxy_command: str | None = None
    arguments: tuple[str, ...] = ()
    """The flags of this launch, for the program ssh, which reads the configuration itself."""

    def ssh(self, *options: str) -> str:
        """Return the command that a person would use to log in to the host, with further options of ssh."""
        target = f"{self.user}@{self.name}" if self.user else self.name
        return shlex.join(["ssh", *options, *self.arguments, target])

    def __str__(self) -> str:
        """`b`, or with details where they differ from the defaults: `b (10.0.0.7 port 2222 through a)`."""
        port = f" port {self.port}" if self.port != 22 else ""
        through = f" through {self.jump.name}" if self.jump else ""
        place = self.hostname if self.hostname != self.name else ""
        details = f"{place}{port}{through}".strip()
        return f"{self.name} ({details})" if details else self.name


class SshSettings:
    """The user's SSH configuration together with the flags of this launch."""

    def __init__(self, config: str, options: SshOptions, user: str, home: str) -> None:
        """Args: `config` is the text of the configuration with its includes replaced, `options` the flags, `user` and
        `home` the local user and home directory.

        Raises:
            UsageError: a flag or the configuration cannot be understood.
        """
        self._options = options
        self._user = user
        self._home = home
        self._config = _parse(config)
        self._config_of_targets = _parse(_preamble(options) + config)

    def route(self, host: Host) -> Route:
        """Return the route to a host of the job."""
        return self._route(host.name, host.user, None, frozenset(), self._config_of_targets)

    def _route(self, name: str, user: str | None, port: int | None, seen: frozenset[str], config: SSHConfig) -> Route:
        found = _lookup(config, name)
        is_target = config is self._config_of_targets
        chosen = (self._options.identity,) if is_target and self._options.identity else ()
        identities = (*chosen, *found.get("identityfile", ()))
        hostname = str(found["hostname"])
        port = port or _number(found.get("port", "22"), "Port", 65535)
        alias = str(found.get("hostkeyalias", ""))
        proxy = str(found.get("proxycommand", "none"))
        route = Route(
            name,
            hostname,
            port,
            user or str(found.get("user", self._user)),
            tuple(self._path(str(path)) for path in identities if str(path).lower() != "none"),
            found.get("identitiesonly", "no") != "yes",
            found.get("identitiesonly", "no") != "yes" and str(found.get("identityagent", "")).lower() != "none",
            self._known_hosts(found),
            alias or (hostname if port == 22 else f"[{hostname}]:{port}"),
            self._strictness(found),
            self._timeout(found),
            str(found.get("addressfamily", "any")),
            proxy_command=None if proxy.lower() == "none" else proxy,
            arguments=tuple(self._options.arguments) if is_target else (),
        )
        return replace(route, jump=self._jump(str(found.get("proxyjump", "none")), seen | {name}))

    def _jump(self, text: str, seen: frozenset[str]) -> Route | None:
        """Return the last of the hops in `ProxyJump a,b`. Each hop is reached through the one before it."""
        route: Route | None = None
        for hop in text.split(",") if text.lower() != "none" else ():
            match = _HOP.fullmatch(hop.strip())
            if match is None:
                raise UsageError(
                    f"ProxyJump {text!r} is not understood: allowed is [USER@]HOST[:PORT], separated by commas"
                )
            name = match["v6"] or match["name"]
            if name in seen:  # `Host *` with a ProxyJump concerns the jump host too
                return route
            port = int(match["port"]) if match["port"] else None
            reached = self._route(name, match["user"], port, seen, self._config)
            route = reached if route is None else replace(reached, jump=route)
        return route

    def _known_hosts(self, found: Mapping[str, str]) -> tuple[str, ...]:
        users = shlex.split(found.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2"))
        of_all = shlex.split(
            found.get("globalknownhostsfile", "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"),
        )
        return tuple(self._path(file) for file in [*users, *of_all] if file.lower() != "none")

    def _strictness(self, found: Mapping[str, str]) -> str:
        asked = found.get("stricthostkeychecking", "ask").lower()
        if asked in ("no", "off"):
            return "no"
        return "accept-new" if asked == "accept-new" or self._options.accept_new else "yes"

    def _timeout(self, found: Mapping[str, str]) -> float:
        own = self._options.connect_timeout
        configured = found.get("connecttimeout", "none")
        return own if configured.lower() == "none" else float(_number(configured, "ConnectTimeout", 1 << 20))

    def _path(self, path: str) -> str:
        """Return `path` with `~` and `%d`, the home directory, replaced where paramiko has not done so."""
        path = path.replace("%d", self._home)
        return self._home + path[1:] if path == "~" or path.startswith("~/") else os.path.abspath(path)


def read_config(home: str, system: str = "/etc/ssh/ssh_config") -> str:
    """Return the user's and the system's configuration as one text. Includes are replaced, as paramiko has no
    `Include`.

    Raises:
        UsageError: includes are nested too deep.
    """
    users = _with_includes(Path(home, ".ssh", "config"), Path(home, ".ssh"), 0)
    return users + "\nHost *\n" + _with_includes(Path(system), Path("/etc/ssh"), 0)


def _with_includes(file: Path, base: Path, depth: int) -> str:
    if depth > _MAX_INCLUDES:
        raise UsageError(f"{file} is included by itself, or by more than {_MAX_INCLUDES} files within files")
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    text = []
    block = "Host *"  # after an included file, the including file's block continues
    for line in lines:
        key, *words = line.replace("=", " ", 1).split() or [""]
        if key.lower() == "include":
            for pattern in words:
                path = os.path.join(base, os.path.expanduser(pattern.strip('"')))
                text += [_with_includes(Path(found), base, depth + 1) for found in sorted(glob.glob(path))]
            text.append(block)
            continue
        if key.lower() in ("host", "match"):
            block = line
        text.append(line)
    return "\n".join(text) + "\n"


def _parse(text: str) -> SSHConfig:
    from paramiko import SSHConfig
    from paramiko.ssh_exception import SSHException

    try:
        return SSHConfig.from_text(text)
    except (SSHException, ValueError) as error:
        raise UsageError(f"~/.ssh/config cannot be understood: {error}") from None


def _lookup(config: SSHConfig, name: str) -> Mapping[str, str]:
    try:
        found: Mapping[str, str] = config.lookup(name)
        return found
    except ImportError:
        raise UsageError(
            "~/.ssh/config has 'Match exec', which needs a further package: pip install invoke, or use Host instead"
        ) from None
    except Exception as error:  # paramiko raises many types for a configuration that it does not understand
        raise UsageError(f"~/.ssh/config cannot be understood for host {name!r}: {error}") from None


def _preamble(options: SshOptions) -> str:
    """Return flags as lines of a configuration. They go before all others, as the first value wins."""
    lines = [f"Port {options.port}\n"] if options.port is not None else []
    for option in options.options:
        key, equals, value = option.partition("=")
        known = {name.lower(): name for name in _UNDERSTOOD}
        if not equals or not value.strip() or key.strip().lower() not in known:
            allowed = ", ".join(_UNDERSTOOD)
            raise UsageError(f"--ssh-option {option!r} is not understood: allowed is KEY=VALUE with one of {allowed}")
        lines.append(f"{known[key.strip().lower()]} {value.strip()}\n")
    return "".join(lines)


def _number(text: str, key: str, most: int) -> int:
    number = whole_number(text, most=most)
    if number is None:
        raise UsageError(f"{key} {text!r} in the SSH configuration is not a number from 1 to {most}")
    return number
