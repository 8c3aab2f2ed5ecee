"""The process of a parameter server: accepts the connections of workers, and serves each in a thread.

It is started by the path of this file, since distrun may be in neither the current directory nor PYTHONPATH. It ends by
a signal, but only after the workers have left, since they may still need it while they end. Its state is in memory that
outlives it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue

sys.path[0] = str(Path(__file__).resolve().parents[3])  # instead of this folder, whose modules are not top-level ones

from distrun.contract.launch import (  # noqa: E402
    PREFIX,
    SERVER,
    SERVER_COPIES,
    SERVER_GENERATION,
    SERVER_MEMORY,
    SERVERS,
)
from distrun.contract.settings import Settings  # noqa: E402
from distrun.errors import BootstrapError, DistrunError  # noqa: E402
from distrun.host.connections.listener import Listener, listen  # noqa: E402
from distrun.host.connections.tcp_options import set_tcp_options  # noqa: E402
from distrun.host.endpoints import format_endpoint, parse_endpoint  # noqa: E402
from distrun.methods.servers.copies import Copies  # noqa: E402
from distrun.methods.servers.protocol import CALLS, MEANT, OPTIMIZER, WORKER, is_connected  # noqa: E402
from distrun.methods.servers.service import Calls, CallService, Service  # noqa: E402
from distrun.methods.servers.stores import Stores  # noqa: E402

_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LOOK_AGAIN = 0.02  # seconds


class Workers:
    """Runs the threads that serve workers, and ends the process after a signal once the workers have left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self.at_end: Callable[[], None] = lambda: None
        """Called at the end of the process."""
        self._signals: SimpleQueue[int] = SimpleQueue()  # SimpleQueue.put may be called in a signal handler

    def heed_signals(self) -> None:
        """End the process on SIGTERM, SIGINT and SIGHUP. Ignore SIGUSR1 and SIGUSR2, which scripts may use."""
        for signum in _ENDING_SIGNALS:
            signal.signal(signum, lambda signum, frame: self._signals.put(signum))
        for signum in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(signum, signal.SIG_IGN)
        threading.Thread(target=self._end_when_told, name="distrun ends", daemon=True).start()

    def serve(self, connection: socket.socket, run: Callable[[], None], name: str) -> None:
        """Call `run`, which serves the worker at the other end of `connection`, in a new thread."""
        with self._lock:
            self._connections.add(connection)
        threading.Thread(target=self._run, args=(connection, run), name=name, daemon=True).start()

    def _run(self, connection: socket.socket, run: Callable[[], None]) -> None:
        try:
            run()
        finally:
            with self._lock:
                self._connections.discard(connection)

    def _end_when_told(self) -> None:
        """End the process after a signal, once no worker is connected.

        The connections are checked, not the threads: the thread of a worker that has died may wait for another worker.
        """
        signum = self._signals.get()
        while self._has_workers():
            time.sleep(_LOOK_AGAIN)
        self.at_end()
        os._exit(128 + signum)

    def _has_workers(self) -> bool:
        with self._lock:
            return any(map(is_connected, self._connections))


def main() -> None:
    """Serve until a signal ends the process."""
    workers = Workers()
    workers.heed_signals()
    server = int(os.environ[SERVER])
    endpoints = os.environ[SERVERS].split(";")
    settings = Settings.of(os.environ)
    copies, seconds = _copies(server)
    stores = Stores(int(os.environ[SERVER_MEMORY]), len(endpoints), server, copies)
    if copies is not None:
        _restore(stores, copies, server)
        workers.at_end = copies.remove
        threading.Thread(target=_keep, args=(stores, seconds), name="distrun copies", daemon=True).start()
    listener = _listener(endpoints[server], bytes.fromhex(os.environ[PREFIX + "KEY"]), settings.encrypt)
    calls = Calls()
    while True:
        accepted = listener.receive(None)
        assert accepted is not None  # there is no timeout
        connection, introduction = accepted
        worker, optimizer = introduction.get(WORKER), introduction.get(OPTIMIZER)
        is_ours = introduction.get(MEANT) == server  # another server may have the same private address on its host
        if not isinstance(worker, int) or not isinstance(optimizer, int) or not is_ours:
            connection.close()
            continue
        set_tcp_options(connection, settings.keepalive, may_be_unread=True)
        service: Service | CallService = Service(connection, worker, partial(stores.open, optimizer))
        if optimizer == CALLS:
            service = CallService(connection, worker, calls)
        workers.serve(connection, service.run, f"distrun serves rank {worker}")


def _copies(server: int) -> tuple[Copies | None, float]:
    """Return the copies of this server, or None if none are made, and the seconds between two copies."""
    told = os.environ.get(SERVER_COPIES)
    if not told:
        return None, 0.0
    seconds, _, folder = told.partition(":")
    return Copies(Path(folder), server, int(os.environ.get(SERVER_GENERATION, "0"))), float(seconds)


def _restore(stores: Stores, copies: Copies, server: int) -> None:
    """Restore the shares from copies if this server was restarted on another host, so that its memory is empty.

    If a share has no copy, workers that had opened it are refused, and others may begin.
    """
    if not stores.is_empty or not int(os.environ.get(SERVER_GENERATION, "0")):
        return
    for optimizer, (copy, age) in sorted(copies.newest().items()):
        stores.restore(optimizer, copy)
        print(
            f"distrun: server {server} goes on with its copy of {age:.1f} s ago, after {copy.version} updates; those "
            "since then are lost",
            file=sys.stderr,
            flush=True,
        )
    stores.keep_all()


def _keep(stores: Stores, seconds: float) -> None:
    """Copy all changed shares every `seconds` seconds, for ever."""
    while True:
        time.sleep(seconds)
        stores.keep_all()


def _listener(endpoints: str, key: bytes, is_encrypted: bool) -> Listener:
    """Return a listener at the endpoints of this server. The agent reserves their port."""
    sockets, reasons = [], []
    for text in endpoints.split(","):
        address, port = parse_endpoint(text)
        try:
            sockets.append(listen(address, port, shared=True))
        except OSError as error:
            reasons.append(f"{format_endpoint(address, port)} ({error.strerror or error})")
    if not sockets:
        raise BootstrapError(
            f"this server can listen at none of {', '.join(reasons)}: choose the addresses with --network"
        )
    return Listener(sockets, key, is_encrypted=is_encrypted)


if __name__ == "__main__":
    try:
        main()
    except DistrunError as error:
        sys.exit(f"distrun: {error}")
