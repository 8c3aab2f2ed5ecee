"""The hub of a communicator, in the process that made its unique id: it collects parts and sends results.

Ranks connect to it over an abstract Unix socket. Every rank sends its part of each operation; when all have, the result
goes out. The death of a rank is not noticed, as with NCCL over NVLink or shared memory, unless
SIMULATED_NCCL_NETWORK=1.
"""

from __future__ import annotations

import os
import pickle
import secrets
import socket
import struct
import sys
import threading
from typing import Any

from simulator import reductions

ID_BYTES = 128
INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR = 4, 5, 6
_SHARING = 23000  # the first version where ranks may share a GPU


class Link:
    """A connection that carries pickled messages; any thread may send."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, *message: Any) -> None:
        """Send a message; OSError when the other side is gone."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        with self._lock:
            self._connection.sendall(struct.pack("!Q", len(data)))
            self._connection.sendall(data)

    def receive(self) -> tuple[Any, ...] | None:
        """Return the next message; None when the other side is gone."""
        try:
            head = self._exactly(8)
            data = head and self._exactly(struct.unpack("!Q", head)[0])
        except OSError:
            return None
        return pickle.loads(data) if data else None

    def _exactly(self, count: int) -> bytearray | None:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            received = self._connection.recv_into(view)
            if not received:
                return None
            view = view[received:]
        return data

    def close(self) -> None:
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._connection.close()


def connect(unique_id: bytes) -> Link:
    """Connect to the hub of a unique id."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(_address(unique_id))
    return Link(connection)


def _address(unique_id: bytes) -> bytes:
    return b"\0simulated-nccl-" + unique_id.rstrip(b"\0")


class Hub:
    """The server of one communicator, in threads that end when its ranks have left."""

    def __init__(self) -> None:
        self.unique_id = secrets.token_hex(16).encode().ljust(ID_BYTES, b"\0")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(_address(self.unique_id))
        self._listener.listen(256)
        self._lock = threading.Lock()
        self._links: dict[int, Link] = {}
        self._local: set[int] = set()  # ranks of this process
        self._collectives: dict[int, dict[int, tuple[Any, bytes | None]]] = {}
        self._transfers: dict[Any, dict[str, tuple[int, bytes | None]]] = {}
        threading.Thread(target=self._serve, name="simulated NCCL", daemon=True).start()

    # Exchange ---------------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        met: dict[int, dict[str, Any]] = {}
        refused = ""
        while not met or len(met) < next(iter(met.values()))["size"]:
            connection, _ = self._listener.accept()
            link = Link(connection)
            hello = link.receive()
            if hello is None:
                continue
            rank, facts = hello
            refused = refused or _refusal(rank, facts, met)
            met[rank if rank not in met else -len(met)] = facts
            self._links[rank if rank not in self._links else -len(self._links)] = link
            if facts["process"] == os.getpid():
                self._local.add(rank)
        self._listener.close()
        for link in self._links.values():
            link.send("refused", refused) if refused else link.send("welcome")
        if not refused:
            for rank, link in self._links.items():
                threading.Thread(target=self._listen, args=(rank, link), name="simulated NCCL", daemon=True).start()

    def _listen(self, rank: int, link: Link) -> None:
        while message := link.receive():
            if message[0] == "bye":
                break
            with self._lock:
                getattr(self, f"_take_{message[0]}")(rank, *message[1:])
        else:
            if os.environ.get("SIMULATED_NCCL_NETWORK") == "1":
                self._tell_all(REMOTE_ERROR, f"the connection to rank {rank} is lost")
        link.close()

    # Operations -------------------------------------------------------------------------------------------------------

    def _take_collective(self, rank: int, index: int, call: Any, part: bytes | None) -> None:
        parts = self._collectives.setdefault(index, {})
        parts[rank] = call, part
        first, (expected, _) = next(iter(parts.items()))
        if call != expected:
            text = f"mismatch: collective {index} is {expected} on rank {first} and {call} on rank {rank}"
            self._tell_all(INVALID_USAGE, text)
        elif len(parts) == len(self._links):
            del self._collectives[index]
            results = _results(call, [parts[each][1] for each in range(len(parts))])
            # Who is in this process may end it when it has its result.
            for each in sorted(results, key=lambda each: (each in self._local, each)):
                self._answer(each, ("collective", index), results[each])

    def _take_transfer(self, rank: int, key: Any, nbytes: int, part: bytes | None) -> None:
        source, target, _ = key
        sides = self._transfers.setdefault(key, {})
        sides["recv" if part is None else "send"] = nbytes, part
        if len(sides) == 2:
            del self._transfers[key]
            (sent, data), (expected, _) = sides["send"], sides["recv"]
            if sent != expected:
                self._tell_all(
                    INVALID_USAGE,
                    f"mismatch: rank {source} sends {sent} bytes to rank {target}, which receives {expected}",
                )
                return
            self._answer(target, ("recv", key), data)
            self._answer(source, ("send", key), None)

    def _answer(self, rank: int, key: Any, data: bytes | None) -> None:
        try:
            self._links[rank].send("done", key, data)
        except OSError:
            pass

    def _tell_all(self, status: int, text: str) -> None:
        for link in self._links.values():
            try:
                link.send("failed", status, text)
            except OSError:
                pass


def _refusal(rank: int, facts: dict[str, Any], met: dict[int, dict[str, Any]]) -> str:
    """Return why a rank cannot join those that have; empty if it can."""
    if rank in met:
        return f"two ranks are rank {rank}"
    for other, theirs in met.items():
        if theirs["size"] != facts["size"]:
            return f"rank {other} expects {theirs['size']} ranks and rank {rank} expects {facts['size']}"
        is_same = (theirs["host"], theirs["device"]) == (facts["host"], facts["device"])
        if is_same and not (facts["shares"] and facts["version"] >= _SHARING):
            return f"Duplicate GPU detected : rank {rank} and rank {other} both on CUDA device {facts['device']}"
    return ""


def _results(call: Any, parts: list[bytes | None]) -> dict[int, bytes | None]:
    """Return the result of a collective for each rank."""
    name, count, datatype, op, root, _ = call
    size = len(parts)
    given = [part or b"" for part in parts]
    if name == "broadcast":
        return dict.fromkeys(range(size), given[root])
    if name == "allGather":
        return dict.fromkeys(range(size), b"".join(given))
    whole = reductions.reduce(given, datatype, op)
    if name == "allReduce":
        return dict.fromkeys(range(size), whole)
    if name == "reduce":
        return {rank: whole if rank == root else None for rank in range(size)}
    assert name == "reduceScatter", name
    nbytes = count * reductions.itemsize(datatype)
    return {rank: whole[rank * nbytes : (rank + 1) * nbytes] for rank in range(size)}


def warn(text: str) -> None:
    """Print a warning as NCCL does when NCCL_DEBUG is WARN or more; the program's own mistakes always."""
    print(f"simulated NCCL: {text}", file=sys.stderr, flush=True)
