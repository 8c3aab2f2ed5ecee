"""The service of one worker: receives and answers its requests, one after the other, in a thread of its own."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.errors import DistrunError, MismatchError
from distrun.methods.servers.layout import Layout
from distrun.methods.servers.protocol import Header, Kind, expect, receive_header, receive_into, receive_text, send
from distrun.methods.servers.store import Push, Rows, Store


class Service:
    """Serves one connection with a worker."""

    def __init__(self, connection: socket.socket, worker: int, open_store: Callable[[Layout, bool], Store]) -> None:
        """`open_store` returns the store of a layout, given whether this worker has opened it before."""
        self._connection = connection
        self._worker = worker
        self._open_store = open_store

    def run(self) -> None:
        """Serve until the worker disconnects. A worker that violates the protocol is sent an error and disconnected."""
        try:
            self._serve()
        except DistrunError as error:
            with suppress(OSError):
                send(self._connection, Kind.ERROR, parts=[str(error).encode()])
        except OSError:
            pass  # the launcher reports why the worker is gone
        finally:
            self._connection.close()

    def _serve(self) -> None:
        header = receive_header(self._connection)
        if header.kind != Kind.OPEN:
            raise MismatchError(f"message {header.kind} came before the layout")
        layout = Layout.from_json(receive_text(self._connection, header.length))
        if not 0 <= self._worker < layout.workers:
            raise MismatchError(f"rank {self._worker} is none of {layout.workers} workers")
        store = self._open_store(layout, bool(header.needed))
        store.rejoin(self._worker, header.number)
        send(self._connection, Kind.OPENED, store.block.clocks[self._worker])
        dense = np.empty(store.share.dense_size, np.float32)
        while True:
            self._answer(store, receive_header(self._connection), dense)

    def _answer(self, store: Store, header: Header, dense: NDArray[np.float32]) -> None:
        match header.kind:
            case Kind.SET:
                store.set(lambda arrays: self._receive_values(store, header, arrays))
                store.keep(True)  # after the answer, the worker relies on the copy
                send(self._connection, Kind.DONE, store.block.version)
            case Kind.PUSH:
                pushed = self._receive_push(store, header, dense)
                store.await_ready()
                store.push(self._worker, header.number, pushed)
                self._send_dense(store, header.needed)
            case Kind.PULL:
                expect(header, 0)
                self._send_dense(store, header.needed)
            case Kind.ROWS:
                indices = self._receive_indices(header.length)
                if not 0 <= header.number < len(store.share.tables):
                    raise MismatchError(f"there is no table {header.number}")
                store.await_clock(header.needed)
                send(self._connection, Kind.VALUES, store.block.version, parts=[store.rows(header.number, indices)])
            case Kind.GET:
                expect(header, 0)
                store.await_ready()
                send(self._connection, Kind.VALUES, store.block.version, parts=[*store.block.arrays, store.block.steps])
            case Kind.LEAVE:
                expect(header, 0)
                store.leave(self._worker)
                store.keep_left()
                send(self._connection, Kind.DONE)
            case _:
                raise MismatchError(f"message {header.kind} is not for a server")

    def _send_dense(self, store: Store, needed: int) -> None:
        store.await_clock(needed)
        send(self._connection, Kind.VALUES, store.block.version, parts=[store.dense])

    def _receive_values(self, store: Store, header: Header, arrays: NDArray[np.float32]) -> NDArray[np.int64] | None:
        values, *slots = arrays
        if not header.number:
            expect(header, values.nbytes)
            receive_into(self._connection, values)
            return None
        steps = np.empty(len(store.share.parts), np.int64)
        expect(header, arrays.nbytes + steps.nbytes)
        for array in (values, *slots, steps):
            receive_into(self._connection, array)
        return steps

    def _receive_push(self, store: Store, header: Header, dense: NDArray[np.float32]) -> Push:
        share = store.share
        rates = np.empty(len(store.layout.rules), np.float64)
        present = np.empty(len(share.segments), np.uint8)
        counts = np.empty(len(share.tables), np.int64)
        for array in (rates, present, counts):
            receive_into(self._connection, array)
        for table, count in zip(share.tables, counts.tolist(), strict=True):
            if not 0 <= count <= table.rows:
                raise MismatchError(f"a worker pushes {count} of {table.rows} rows")
        sizes = [count * (8 + 4 * table.width) for table, count in zip(share.tables, counts.tolist(), strict=True)]
        expect(header, rates.nbytes + present.nbytes + counts.nbytes + dense.nbytes + sum(sizes))
        receive_into(self._connection, dense)
        tables = []
        for table, count in zip(share.tables, counts.tolist(), strict=True):
            rows = Rows(np.empty(count, np.int64), np.empty((count, table.width), np.float32))
            receive_into(self._connection, rows.indices)
            receive_into(self._connection, rows.values)
            tables.append(rows)
        return Push(rates, present.astype(np.bool_), dense, tuple(tables))

    def _receive_indices(self, length: int) -> NDArray[Any]:
        if length > 1 << 33 or length % 8:
            raise MismatchError(f"{length} bytes are no list of rows")
        indices = np.empty(length // 8, np.int64)
        receive_into(self._connection, indices)
        return indices


@dataclass(frozen=True)
class Calls:
    """The calls of the coordinator, in the order it schedules them, for any free worker. Server 0 holds them.

    To the server, calls and results are bytes, which it does not interpret.
    """

    pending: SimpleQueue[tuple[int, bytes] | None] = field(default_factory=SimpleQueue)
    """The calls with their numbers. None: there will be no more."""
    results: SimpleQueue[tuple[int, bytes]] = field(default_factory=SimpleQueue)
    """The results that the coordinator has not taken yet, with the numbers of their calls."""


class CallService:
    """Serves one connection with the coordinator, or with a worker that executes its calls."""

    def __init__(self, connection: socket.socket, rank: int, calls: Calls) -> None:
        """`rank` is the rank of the other side. The coordinator is rank 0."""
        self._connection = connection
        self._rank = rank
        self._calls = calls

    def run(self) -> None:
        """Serve until the other side disconnects."""
        try:
            while True:
                self._answer(receive_header(self._connection))
        except (OSError, DistrunError):
            pass  # the launcher reports why it is gone
        finally:
            self._connection.close()
            if self._rank == 0:  # the coordinator may have ended without a call of `end`
                self._calls.pending.put(None)

    def _answer(self, header: Header) -> None:
        text = receive_text(self._connection, header.length)
        match header.kind:
            case Kind.SCHEDULE:
                self._calls.pending.put((header.number, text))
            case Kind.REPORT:
                self._calls.results.put((header.number, text))
            case Kind.END:
                self._calls.pending.put(None)
            case Kind.NEXT_CALL:
                if (call := self._calls.pending.get()) is not None:
                    send(self._connection, Kind.CALL, call[0], parts=[call[1]])
                    return
                self._calls.pending.put(None)  # for the other workers
            case Kind.NEXT_RESULT:
                number, result = self._calls.results.get()
                send(self._connection, Kind.RESULT, number, parts=[result])
                return
            case _:
                raise MismatchError(f"message {header.kind} is not for the queue of calls")
        send(self._connection, Kind.DONE)
