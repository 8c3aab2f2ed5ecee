"""The known keys of hosts, in the files of OpenSSH, and the check of the key that a host shows.

paramiko has a reader of its own, but it fails on markers, knows no patterns, and cannot tell where a key was found.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

from distrun.runner.planning.ssh_config import Route
from distrun.runner.protocol.handshake import HostError


@dataclass(frozen=True)
class KnownKey:
    """A host key in one of the files."""

    type: str
    """The type as written in the file, such as `ssh-ed25519`."""
    blob: bytes
    where: str
    """Where the key was found: `/root/.ssh/known_hosts, line 3`."""
    revoked: bool = False


def name_of(hostname: str, port: int) -> str:
    """Return the name of a host in known_hosts files: `worker-1`, or `[worker-1]:2222` for another port than 22."""
    return hostname if port == 22 else f"[{hostname}]:{port}"


def lookup(name: str, files: Iterable[str]) -> list[KnownKey]:
    """Return the keys that `files` hold for a host, in their order. A file that cannot be read is skipped.

    Args:
        name: the host's name, as `name_of` returns it.
        files: paths.
    """
    keys = []
    for file in files:
        try:
            lines = _lines(file, os.stat(file).st_mtime_ns)
        except OSError:
            continue
        keys += [
            key
            for number, words in lines
            if _matches(words[words[0].startswith("@")], name)
            for key in _parse(words, f"{file}, line {number}")
        ]
    return keys


def fingerprint(blob: bytes) -> str:
    """Return the fingerprint of a key, as ssh shows it to people: `SHA256:9kf3...`."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def append(name: str, type: str, blob: bytes, file: str) -> None:
    """Append a key to a file. Raises OSError."""
    path = Path(file)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    line = f"{name} {type} {base64.b64encode(blob).decode()}\n"
    with open(path, "ab", opener=lambda file, flags: os.open(file, flags, 0o600)) as known:
        if known.tell() and not path.read_bytes().endswith(b"\n"):
            line = "\n" + line
        known.write(line.encode())


def check(route: Route, type: str, blob: bytes, known: list[KnownKey]) -> None:
    """Accept or refuse the key that a host shows. A new key is added to known_hosts if `route.strict` is "accept-new".

    Raises:
        HostError: the key is refused.
    """
    shown = f"{type} {fingerprint(blob)}"
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
            f"{fingerprint(valid[0].blob)} ({valid[0].where}); somebody may be listening in; if you know "
            f"why it changed: {remove} && {accept}"
        )
    if route.strict == "accept-new":
        try:
            append(route.key_name, type, blob, file)
        except OSError as error:
            raise HostError(f"its new host key cannot be written to {file}: {error.strerror}") from None
        return
    raise HostError(
        f"its host key {shown} is not known; if that is the right one: {accept}; or give --ssh-accept-new to accept "
        "the keys of hosts never seen before"
    )


def _keyscan(route: Route) -> str:
    """Return the command that prints a host's key for known_hosts, on the jump host if there is one."""
    port = f"-p {route.port} " if route.port != 22 else ""
    command = f"ssh-keyscan {port}{shlex.quote(route.hostname)}"
    return command if route.jump is None else f"ssh {shlex.quote(route.jump.name)} {command}"


@lru_cache(maxsize=8)
def _lines(file: str, changed: int) -> list[tuple[int, list[str]]]:
    """Return the words of the lines that hold a key, with line numbers. A file is read once for all hosts of a launch.

    `changed` is the time of its last change, which tells cached contents from new ones.
    """
    lines = enumerate(Path(file).read_text(errors="replace").splitlines(), 1)
    return [(number, words) for number, line in lines if len(words := line.split()) >= 3 and words[0][0] != "#"]


def _parse(words: list[str], where: str) -> list[KnownKey]:
    # worker-1,10.0.0.5 ssh-ed25519 AAAA... comment     *.cluster ssh-rsa AAAA...     |1|salt|hash ssh-ed25519 AAAA...
    # @revoked worker-1 ssh-rsa AAAA...                 @cert-authority *.cluster ssh-rsa AAAA...
    marker, words = (words[0], words[1:]) if words[0].startswith("@") else ("", words)
    if len(words) < 3 or marker not in ("", "@revoked"):
        return []
    try:
        return [KnownKey(words[1], base64.b64decode(words[2], validate=True), where, marker == "@revoked")]
    except ValueError:
        return []


def _matches(patterns: str, name: str) -> bool:
    if patterns.startswith("|1|"):
        return _matches_hash(patterns, name)
    if not any(letter in patterns for letter in "*?!"):
        return name.lower() in patterns.lower().split(",")
    found = False
    for pattern in patterns.split(","):
        negated = pattern.startswith("!")
        if fnmatchcase(name.lower(), _glob(pattern.lstrip("!").lower())):
            if negated:
                return False
            found = True
    return found


def _glob(pattern: str) -> str:
    """Return a pattern of OpenSSH as one of `fnmatch`. Brackets are ordinary characters, as in [worker-1]:2222."""
    return pattern.replace("[", "[[]")


def _matches_hash(hashed: str, name: str) -> bool:
    salt, digest = _decoded(hashed)
    return hmac.digest(salt, name.encode(), "sha1") == digest  # both are public


@lru_cache(maxsize=1 << 16)
def _decoded(hashed: str) -> tuple[bytes, bytes]:
    try:
        _, _, salt, digest = hashed.split("|")
        return base64.b64decode(salt), base64.b64decode(digest)
    except ValueError:
        return b"", b""
