"""The proof that both ends of a measuring connection know its key.

Before the proof, nothing but the proof is read, which has a fixed size, and only for a limited time.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import socket
import time

_PROOF = 2.0  # seconds for a proof, in which TCP can resend lost packets
_NONCE = 32


def challenge(peer: socket.socket, key: bytes) -> bool:
    """Exchange proofs as the server, and return whether the client knows the key."""
    deadline = time.monotonic() + _PROOF
    ours = os.urandom(_NONCE)
    peer.settimeout(_PROOF)
    peer.sendall(ours)
    answer = read(peer, _NONCE + hashlib.sha256().digest_size, deadline)
    theirs, proof = answer[:_NONCE], answer[_NONCE:]
    if not hmac.compare_digest(proof, _proof(key, b"client", ours, theirs)):
        return False
    peer.sendall(_proof(key, b"server", theirs, ours))
    return True


def respond(peer: socket.socket, key: bytes) -> bool:
    """Exchange proofs as the client, and return whether the server knows the key."""
    deadline = time.monotonic() + 2 * _PROOF  # the server may serve a stranger first
    theirs = read(peer, _NONCE, deadline)
    ours = os.urandom(_NONCE)
    peer.sendall(ours + _proof(key, b"client", theirs, ours))
    proof = read(peer, hashlib.sha256().digest_size, deadline)
    return hmac.compare_digest(proof, _proof(key, b"server", ours, theirs))


def _proof(key: bytes, role: bytes, theirs: bytes, own: bytes) -> bytes:
    return hmac.digest(key, role + theirs + own, "sha256")


def read(peer: socket.socket, size: int, deadline: float) -> bytes:
    """Return `size` bytes from the peer, or fewer if it has closed the connection.

    Raises:
        OSError: they do not arrive by the monotonic time `deadline`.
    """
    data = b""
    while len(data) < size:
        peer.settimeout(max(0.001, deadline - time.monotonic()))
        piece = peer.recv(size - len(data))
        if not piece:
            break
        data += piece
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
    return data
