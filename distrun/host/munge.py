"""munge: a cluster's service that authenticates users between hosts.

Here it sends the job key to all ranks, and vouches for the public keys of launcher and agents.

`munge` wraps a text into a credential that only this cluster's `unmunge` can open, and only for the user it is
restricted to. `unmunge` also returns the user who made it. The credential may therefore be public.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess

from distrun.errors import BootstrapError

_TIMEOUT = 10.0  # seconds
_REMEDY = (
    "see whether munge is running on every host, set DISTRUN_KEY to the same secret on all ranks, or use `distrun`"
)
# Statuses of unmunge. The second rank of a host opens a credential that the first has already opened.
_SUCCESS, _REPLAYED = 0, 17
_KEY = 32  # bytes


def is_here() -> bool:
    """Return whether this host has munge."""
    return all(shutil.which(tool) for tool in ("munge", "unmunge"))


def vouched(text: str) -> bytes:
    """Return a credential that reveals `text` only to processes of this user, and proves that this user made it.

    Raises:
        BootstrapError: munge does not work.
    """
    status, credential = _run(["munge", f"--restrict-uid={os.getuid()}", "--ttl=-1"], text.encode())
    if status:
        raise BootstrapError(f"munge ended with status {status}: {_REMEDY}")
    return credential.strip()


def opened(credential: bytes, whose: str) -> str:
    """Return the text in an untrusted `credential`. `whose` names the process that should have made it, for errors.

    Raises:
        BootstrapError: it is not a credential, was made by another user, or munge does not work.
    """
    status, said = _run(["unmunge", "--keys=STATUS,UID", "--numeric"], credential)
    metadata, _, text = said.partition(b"\n\n")
    values = dict(line.split(b":", 1) for line in metadata.splitlines() if b":" in line)
    if status not in (_SUCCESS, _REPLAYED) or not values.get(b"UID", b"").strip().isdigit():
        raise BootstrapError(f"{whose}'s munge credential cannot be opened (status {status} of unmunge): {_REMEDY}")
    uid = int(values[b"UID"])
    if uid != os.getuid():
        raise BootstrapError(f"user id {uid} answers in {whose}'s place, and we are {os.getuid()}: {_REMEDY}")
    return text.decode("ascii", "replace").strip()


def new_key() -> tuple[bytes, bytes]:
    """Return a credential and a new key. The credential reveals the key only to processes of this user.

    Raises:
        BootstrapError: munge does not work.
    """
    key = secrets.token_hex(_KEY)
    return vouched(key), bytes.fromhex(key)


def key_of(credential: bytes) -> bytes:
    """Return the key in rank 0's untrusted `credential`.

    Raises:
        BootstrapError: it is not a credential, was made by another user, or munge does not work.
    """
    try:
        found = bytes.fromhex(opened(credential, "rank 0"))
    except ValueError:
        found = b""
    if len(found) != _KEY:
        raise BootstrapError("rank 0's munge credential holds no key: use the same version of distrun everywhere")
    return found


def _run(command: list[str], given: bytes) -> tuple[int, bytes]:
    """Run one of munge's tools with the input `given`. Return its status and output. Secrets only go through pipes."""
    try:
        done = subprocess.run(command, input=given, capture_output=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it did not answer within {_TIMEOUT:g} s"
        raise BootstrapError(f"{command[0]} cannot be used: {reason}; {_REMEDY}") from None
    if done.returncode and not done.stdout:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise BootstrapError(f"{command[0]} failed with {''.join(said)!r}: {_REMEDY}")
    return done.returncode, done.stdout
