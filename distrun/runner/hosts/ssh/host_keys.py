"""The check of the key that a host shows when an SSH connection begins."""

from __future__ import annotations

import os
import shlex

from distrun.runner.hosts.ssh import known_hosts
from distrun.runner.planning.ssh_config import Route
from distrun.runner.protocol.handshake import HostError


def check_host_key(route: Route, type: str, blob: bytes, known: list[known_hosts.KnownKey]) -> None:
    """Accept or refuse the key that a host shows. A new key is added to known_hosts if `route.strict` is "accept-new".

    Raises:
        HostError: the key is refused.
    """
    shown = f"{type} {known_hosts.fingerprint(blob)}"
    for key in known:
        if key.revoked and key.blob == blob:
            raise HostError(f"its host key {shown} is marked as revoked in {key.where}")
    valid = [key for key in known if not key.revoked]
    if route.strict == "no" or any(key.blob == blob for key in valid):
        return
    file = route.known_hosts[0] if route.known_hosts else os.path.expanduser("~/.ssh/known_hosts")
    accept = f"{_keyscan(route)} >> {shlex.quote(file)}"
    if valid:
        remove = f"ssh-keygen -f {shlex.quote(file)} -R {shlex.quote(route.key_name)}"
        raise HostError(
            f"its host key has changed: it shows {shown}, and known is {valid[0].type} "
            f"{known_hosts.fingerprint(valid[0].blob)} ({valid[0].where}); somebody may be listening in; if you know "
            f"why it changed: {remove} && {accept}"
        )
    if route.strict == "accept-new":
        _remember(route.key_name, type, blob, file)
        return
    raise HostError(
        f"its host key {shown} is not known; if that is the right one: {accept}; or give --ssh-accept-new to accept "
        "the keys of hosts never seen before"
    )


def _remember(name: str, type: str, blob: bytes, file: str) -> None:
    try:
        known_hosts.append(name, type, blob, file)
    except OSError as error:
        raise HostError(f"its new host key cannot be written to {file}: {error.strerror}") from None


def _keyscan(route: Route) -> str:
    """Return the command that prints a host's key for known_hosts, on the jump host if there is one."""
    port = f"-p {route.port} " if route.port != 22 else ""
    command = f"ssh-keyscan {port}{shlex.quote(route.hostname)}"
    return command if route.jump is None else f"ssh {shlex.quote(route.jump.name)} {command}"
