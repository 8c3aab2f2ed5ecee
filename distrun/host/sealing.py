"""Sealing: what two processes send each other over a line that others can read, once they know each other's public key.

Each makes an X25519 key pair for this one conversation. From the secret that the two pairs have in common, HKDF-SHA256
derives a key for each direction, and ChaCha20-Poly1305 seals one message after the other with it: who only listens
learns their lengths, and who changes, repeats, drops or exchanges one is noticed. Who can put a public key of its own
in the place of a real one is not, so where that matters the public keys must come by a way that vouches for them.

The package cryptography does all of it; it is imported with this module, and this module where something is sealed.

TLS would do the same with two more messages, and in both directions, where only one of them carries secrets.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from distrun.errors import BootstrapError

PUBLIC_SIZE = 32
"""Bytes of a public key."""


class SealError(BootstrapError):
    """A message was not sealed by the other side, or was changed on the way."""


class Seal:
    """Seals messages for the other side."""

    def __init__(self, key: bytes) -> None:
        self._cipher = ChaCha20Poly1305(key)
        self._count = 0

    def seal(self, message: bytes) -> bytes:
        """Return the next message as it is sent, 16 bytes longer."""
        nonce = self._next_nonce()
        return self._cipher.encrypt(nonce, message, None)

    def _next_nonce(self) -> bytes:
        self._count += 1
        return self._count.to_bytes(12, "big")


class Opener(Seal):
    """Opens the messages of the other side, in the order in which they were sealed."""

    def open(self, sealed: bytes) -> bytes:
        """Return the next message.

        Raises:
            SealError: it is not the other side's next message.
        """
        try:
            return self._cipher.decrypt(self._next_nonce(), sealed, None)
        except InvalidTag:
            raise SealError("a message was changed on the way, or comes from somebody else") from None


class KeyPair:
    """A key pair for conversations that are all about the same thing."""

    def __init__(self, purpose: str) -> None:
        """Args: what the conversation is about; the same on both sides."""
        self._purpose = purpose.encode()
        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        """Our public key, which the other side has to know."""

    def seal_for(self, other: bytes) -> Seal:
        """Return what seals messages for the side with this public key.

        Raises:
            SealError: that is no public key.
        """
        return Seal(self._derive(other, self.public + other))

    def opener_from(self, other: bytes) -> Opener:
        """Return what opens the messages of the side with this public key. Raises SealError: that is none."""
        return Opener(self._derive(other, other + self.public))

    def _derive(self, other: bytes, direction: bytes) -> bytes:
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(other))
        except ValueError:
            raise SealError(f"{other.hex()!r} is no public key to seal for") from None
        info = b"distrun sealing " + self._purpose + b"\0" + direction
        return HKDF(SHA256(), 32, None, info).derive(shared)
