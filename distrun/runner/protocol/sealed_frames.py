"""Sealed frames: encryption of what the launcher sends an agent over connections that others may read, such as srun's.

The launcher's HELLO holds a public key, and the agent's answer another. Every later frame to the agent, beginning with
the plan and its job key, travels inside a SEALED frame. Where munge runs, each side's public key comes with a munge
credential, so that a man in the middle cannot replace it. Without munge, such a replacement is not noticed. A host
without the package cryptography gets its frames unencrypted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distrun.errors import BootstrapError
from distrun.host import munge
from distrun.runner.protocol.handshake import Greeting, HostError, HostInfo

if TYPE_CHECKING:
    from distrun.host.sealing import KeyPair, Opener, Seal

_PURPOSE = "frames"


class SealOffer:
    """The launcher's side: one key pair for any number of agents."""

    def __init__(self) -> None:
        self._keys = _key_pair()
        self.public = "" if self._keys is None else self._keys.public.hex()
        """The launcher's public key. Empty = frames cannot be sealed here."""
        self.credential = ""
        """A munge credential that vouches for `public`. Empty = there is none."""
        if self.public and munge.is_here():
            try:
                self.credential = munge.vouched(self.public).decode("ascii", "replace")
            except BootstrapError:
                pass  # no munged runs here, so none runs on the nodes

    def accepted(self, info: HostInfo) -> Seal | None:
        """Return the seal for frames to an agent that answered with `info`, or None if it cannot open sealed frames.

        Raises:
            HostError: munge runs here, and no valid credential vouches for the agent's public key.
        """
        if self._keys is None or not info.sealing:
            return None
        try:
            if self.credential and munge.opened(info.credential.encode(), "the agent") != self.public + info.sealing:
                raise HostError("the munge credential of its agent is about another launch: somebody is in between")
            return self._keys.seal_for(bytes.fromhex(info.sealing))
        except (BootstrapError, ValueError) as error:
            raise HostError(f"its agent cannot be trusted: {error}") from None


def answered(greeting: Greeting) -> tuple[str, str, Opener | None]:
    """Return the agent's answer to `greeting`: its public key, the munge credential for it, and the opener of frames.

    Raises:
        BootstrapError: there is a credential of the launcher, and it does not vouch for its public key.
    """
    keys = _key_pair() if greeting.sealing else None
    if keys is None:
        return "", "", None
    public, credential = keys.public.hex(), ""
    if greeting.credential:
        if munge.opened(greeting.credential.encode(), "the launcher") != greeting.sealing:
            raise BootstrapError("the launcher's munge credential is about another launch: somebody is in between")
        credential = munge.vouched(greeting.sealing + public).decode("ascii", "replace")
    return public, credential, keys.opener_from(bytes.fromhex(greeting.sealing))


def _key_pair() -> KeyPair | None:
    try:
        from distrun.host.sealing import KeyPair
    except ImportError:
        return None
    return KeyPair(_PURPOSE)
