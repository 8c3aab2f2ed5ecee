"""Sealing: encrypts messages between two processes that know each other's public key, over a connection others can
read.

Each side makes an X25519 key pair for this one conversation. From their shared secret, HKDF-SHA256 derives a key for
each direction. ChaCha20-Poly1305 seals the messages with it, one after the other. An eavesdropper only learns the
lengths of messages. Changed, repeated, dropped or reordered messages are detected. An attacker who replaces a public
key by another one is not detected, so if this matters, the public keys must arrive on an authenticated path.

The package cryptography does the work. It is imported with this module, so import this module only to seal something.

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
    """A message was not sealed by the other side, or was changed in transmission."""


class Seal:
    """Seals messages for the other side."""

    def __init__(self, key: bytes) -> None:
        self._cipher = ChaCha20Poly1305(key)
        self._count = 0

    def seal(self, message: bytes) -> bytes:
        """Return the next message sealed, 16 bytes longer."""
        return self._cipher.encrypt(self._next_nonce(), message, None)

    def _next_nonce(self) -> bytes:
        self._count += 1
        return self._count.to_bytes(12, "big")


class Opener(Seal):
    """Opens the messages of the other side, in the order they were sealed."""

    def open(self, sealed: bytes) -> bytes:
        """Return the next message, opened.

        Raises:
            SealError: it is not the other side's next message.
        """
        try:
            return self._cipher.decrypt(self._next_nonce(), sealed, None)
        except InvalidTag:
            raise SealError("a message was changed on the way, or comes from somebody else") from None


class KeyPair:
    """A key pair for conversations with the same purpose."""

    def __init__(self, purpose: str) -> None:
        """`purpose` is a text that must be the same on both sides."""
        self._purpose = purpose.encode()
        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        """This side's public key, which the other side must know."""

    def seal_for(self, other: bytes) -> Seal:
        """Return a seal for messages to the side with the public key `other`.

        Raises:
            SealError: `other` is not a public key.
        """
        return Seal(self._derive(other, self.public + other))

    def opener_from(self, other: bytes) -> Opener:
        """Return an opener for messages of the side with the public key `other`. Raises SealError if it is not one."""
        return Opener(self._derive(other, other + self.public))

    def _derive(self, other: bytes, direction: bytes) -> bytes:
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(other))
        except ValueError:
            raise SealError(f"{other.hex()!r} is no public key to seal for") from None
        info = b"distrun sealing " + self._purpose + b"\0" + direction
        return HKDF(SHA256(), 32, None, info).derive(shared)
