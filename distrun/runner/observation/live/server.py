"""The launcher's ear for others of the same user on its machine: an abstract socket, which is no file and ends with it.

A client sends lines of JSON: `{"ask": "about"}` has one line for an answer; after `{"ask": "top"}` come snapshots, and
`{"stack": 3}` and `{"log": 3}` have answers in the `texts` of a later one.
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
from distrun.host.descriptors import accept

if TYPE_CHECKING:
    from distrun.runner.observation.live.hub import Hub, Viewer
    from distrun.runner.observation.live.snapshot import Snapshot

_TIMEOUT = 5.0  # seconds for a client to say what it wants
_MOST_ASKED = 4096  # bytes of a line from a client
_MOST_CLIENTS = 32  # each is a thread and a descriptor


def prefix() -> bytes:
    """Return how the names of the sockets of this user's launchers begin, with the 0 byte of abstract ones.

    What follows nobody can tell before a launcher has it, so nobody can take it first.
    """
    return f"\0distrun/{os.getuid()}/".encode()


class LiveServer:
    """Answers those who look for jobs, and shows them this one."""

    def __init__(
        self,
        about: Callable[[], Mapping[str, Any]],
        watch: Callable[[Viewer], Hub | None],
        unwatch: Callable[[Viewer], None],
    ) -> None:
        """
        Args:
            about: returns what there is to say about the job.
            watch: shows a viewer the job from now on; None: it is over.
            unwatch: shows it to that viewer no more.
        """
        self._about, self._watch, self._unwatch = about, watch, unwatch
        self._since = time.time()
        self._places = threading.Semaphore(_MOST_CLIENTS)
        self._socket: socket.socket | None = None

    def start(self) -> None:
        """Begin to listen; a machine on which that is not possible can do without."""
        name = prefix() + f"{secrets.token_hex(8)}/{os.getpid()}".encode()
        try:
            self._socket = abstract_sockets.listen(socket.SOCK_STREAM, name, 8)
        except OSError:
            return
        threading.Thread(target=self._listen, args=(self._socket,), name="distrun onlookers", daemon=True).start()

    def close(self) -> None:
        """Hear nobody any more."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # closing alone does not wake a thread that accepts
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
        viewer = _Onlooker(connection)
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


class _Onlooker:
    """The viewer at the other end of a connection; one that does not read misses what it has no room for."""

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
        """Send the job, unless the one before has not been read."""
        with self._lock:
            self._send()
            if self._rest:
                return
            self._rest = replace(snapshot, texts=tuple(self._texts)).to_json().encode() + b"\n"
            self._texts.clear()
            self._send()

    def end(self, snapshot: Snapshot) -> None:
        """Send the last one, and end the connection."""
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
            self._rest = b""  # it is gone, which the thread that reads will notice
