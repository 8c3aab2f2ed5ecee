"""The proof that both ends of a measuring connection know its key.

Before it is given, no more than a proof of fixed size is read, and only for a limited time.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import socket
import time

_PROOF = 2.0  # seconds for all of a proof, some of whose packets may be lost
_NONCE = 32


def challenge(peer: socket.socket, key: bytes) -> bool:
    """Prove the key as the server; False when the client does not know it."""
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
    """Prove the key as the client; False when the server does not know it."""
    deadline = time.monotonic() + 2 * _PROOF  # a stranger may be served before us
    theirs = read(peer, _NONCE, deadline)
    ours = os.urandom(_NONCE)
    peer.sendall(ours + _proof(key, b"client", theirs, ours))
    proof = read(peer, hashlib.sha256().digest_size, deadline)
    return hmac.compare_digest(proof, _proof(key, b"server", ours, theirs))


def _proof(key: bytes, role: bytes, theirs: bytes, own: bytes) -> bytes:
    return hmac.digest(key, role + theirs + own, "sha256")


def read(peer: socket.socket, size: int, deadline: float) -> bytes:
    """Return so many bytes, fewer when the peer has gone; raises OSError when they do not come by the monotonic time
    `deadline`."""
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
