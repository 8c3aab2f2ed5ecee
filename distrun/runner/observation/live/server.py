"""The launcher's server for other processes of the same user and machine: an abstract socket, which needs no file.

A client sends lines of JSON. `{"ask": "about"}` is answered by one line, `{"ask": "top"}` by a stream of snapshots.
After that, `{"stack": 3}` and `{"log": 3}` are answered in the `texts` of a later snapshot.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from distrun.host import abstract_sockets
from distrun.host.connections.descriptors import accept

if TYPE_CHECKING:
    from distrun.runner.observation.live.hub import Hub, Viewer
    from distrun.runner.observation.live.snapshot import Snapshot

_TIMEOUT = 5.0  # seconds for a client to send its first request
_MOST_ASKED = 4096  # bytes of a line from a client
_MOST_CLIENTS = 32  # each is a thread and a descriptor


def prefix() -> bytes:
    """Return the prefix of the names of this user's sockets, with the 0 byte of abstract sockets.

    The rest of a name is random, so that no other process can bind it first.
    """
    return f"\0distrun/{os.getuid()}/".encode()


class LiveServer:
    """Answers clients with facts about the job, and shows it to them."""

    def __init__(
        self,
        about: Callable[[], Mapping[str, Any]],
        watch: Callable[[Viewer], Hub | None],
        unwatch: Callable[[Viewer], None],
    ) -> None:
        """
        Args:
            about: returns the facts about the job.
            watch: shows a viewer the job. Returns its hub, or None if the job is over.
            unwatch: disconnects the viewer.
        """
        self._about, self._watch, self._unwatch = about, watch, unwatch
        self._since = time.time()
        self._places = threading.Semaphore(_MOST_CLIENTS)
        self._socket: socket.socket | None = None

    def start(self) -> None:
        """Begin to listen. If that is not possible, the job has no server."""
        name = prefix() + f"{secrets.token_hex(8)}/{os.getpid()}".encode()
        try:
            self._socket = abstract_sockets.listen(socket.SOCK_STREAM, name, 8)
        except OSError:
            return
        threading.Thread(target=self._listen, args=(self._socket,), name="distrun onlookers", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # closing does not wake a thread in accept(2)
            self._socket.close()

    def _listen(self, listener: socket.socket) -> None:
        while (connection := accept(listener)) is not None:
            if abstract_sockets.peer_process(connection)[1] != os.getuid() or not self._places.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), name="distrun onlooker", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError, ValueError):
                self._answer(connection)
        finally:
            self._places.release()

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(_TIMEOUT)
        requests = connection.makefile("rb")
        asked = json.loads(requests.readline(_MOST_ASKED) or b"{}").get("ask")
        if asked == "about":
            about = {**self._about(), "pid": os.getpid(), "since": self._since}
            connection.sendall(json.dumps(about).encode() + b"\n")
        elif asked == "top":
            connection.settimeout(None)
            self._show(connection, requests)

    def _show(self, connection: socket.socket, requests: Any) -> None:
        viewer = _RemoteViewer(connection)
        hub = self._watch(viewer)
        if hub is None:
            return
        try:
            while line := requests.readline(_MOST_ASKED):
                wish = json.loads(line)
                if "log" in wish:
                    viewer.tell(hub.log(int(wish["log"])))
                elif "stack" in wish:
                    hub.stack(int(wish["stack"]), viewer.tell)
        finally:
            self._unwatch(viewer)


class _RemoteViewer:
    """The viewer at the other end of a connection. A slow reader misses snapshots."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest = b""
        self._texts: list[str] = []
        self._lock = threading.Lock()

    def tell(self, text: str) -> None:
        """Send a text with the next snapshot."""
        with self._lock:
            self._texts.append(text)

    def see(self, snapshot: Snapshot) -> None:
        """Send a snapshot, unless the previous one has not been read."""
        with self._lock:
            self._send()
            if self._rest:
                return
            self._rest = replace(snapshot, texts=tuple(self._texts)).to_json().encode() + b"\n"
            self._texts.clear()
            self._send()

    def end(self, snapshot: Snapshot) -> None:
        """Send the last snapshot, and end the connection."""
        self.see(snapshot)
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _send(self) -> None:
        try:
            while self._rest:
                self._rest = self._rest[self._connection.send(self._rest, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]
        except BlockingIOError:
            pass
        except OSError:
            self._rest = b""  # the client is gone, as the reading thread will notice
