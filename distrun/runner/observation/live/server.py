"""The launcher's server for other processes of the same user and machine: an abstract socket, which needs no file.

A client sends lines of JSON. `{"ask": "about"}` is answered by one line, `{"ask": "top"}` by a stream of snapshots.
After that, `{"stack": 3}` and `{"log": 3}` are answered in the `texts` of a later snapshot. `{"ask": "logs", "rank": 3,
"follow": true}` is answered by a line of facts, and then lines about output: `{"rank": 3, "stream": "stdout", "text":
...}`, `{"lost": 4096}` where bytes are missing, and `{"status": 0}` at the end of the job.
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
    from distrun.runner.output.recent import Key, Recent

_TIMEOUT = 5.0  # seconds for a client to send its first request
_MOST_ASKED = 4096  # bytes of a line from a client
_MOST_CLIENTS = 32  # each is a thread and a descriptor
_LOOK_EVERY = 1.0  # seconds between two looks whether one who follows the output is still there
_LAST = 2.0  # seconds that those who follow the output may delay the end of the job


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
        recent: Recent,
        about_output: Callable[[int | None], Mapping[str, Any]],
    ) -> None:
        """
        Args:
            about: returns the facts about the job.
            watch: shows a viewer the job. Returns its hub, or None if the job is over.
            unwatch: disconnects the viewer.
            recent: has the output of the ranks.
            about_output: returns the facts about the output of a rank. None = of all.
        """
        self._about, self._watch, self._unwatch = about, watch, unwatch
        self._recent, self._about_output = recent, about_output
        self._followers: set[threading.Thread] = set()
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

    def close(self, status: Callable[[], int]) -> None:
        """Stop listening. Those who follow the output get the rest of it, and the exit status of the job."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # closing does not wake a thread in accept(2)
            self._socket.close()
        if followers := list(self._followers):
            self._recent.close(status())
            give_up = time.monotonic() + _LAST
            for follower in followers:
                follower.join(max(0.0, give_up - time.monotonic()))

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
        wish = json.loads(requests.readline(_MOST_ASKED) or b"{}")
        asked = wish.get("ask")
        if asked == "about":
            _send_line(connection, {**self._about(), "pid": os.getpid(), "since": self._since})
        elif asked == "top":
            connection.settimeout(None)
            self._show(connection, requests)
        elif asked == "logs":
            connection.settimeout(None)
            self._followers.add(threading.current_thread())
            try:
                self._tell_output(connection, wish["rank"], wish["follow"])
            finally:
                self._followers.discard(threading.current_thread())

    def _tell_output(self, connection: socket.socket, rank: int | None, follows: bool) -> None:
        about = self._about_output(rank)
        _send_line(connection, about)
        seen: dict[Key, int] = {}
        count, status = 0, None
        while not about["refused"]:
            if follows:
                count, status = self._recent.wait(count, _LOOK_EVERY)
            pieces, lost = self._recent.read(rank, seen)
            if lost:
                _send_line(connection, {"lost": lost})
            for piece in pieces:
                text = piece.data.decode(errors="surrogateescape")
                _send_line(connection, {"rank": piece.rank, "stream": piece.stream, "text": text})
            if status is not None:
                _send_line(connection, {"status": status})
            if not follows or status is not None or _has_left(connection):
                break

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


def _send_line(connection: socket.socket, values: Mapping[str, Any]) -> None:
    connection.sendall(json.dumps(values).encode() + b"\n")


def _has_left(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False


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
