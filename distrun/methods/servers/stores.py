"""The stores of one server: the share of each optimizer, new, from an earlier process's memory, or from a copy."""

from __future__ import annotations

import threading
from functools import partial

from distrun.errors import MismatchError
from distrun.methods.servers import memory
from distrun.methods.servers.clocks import LEFT
from distrun.methods.servers.copies import Copies, Copy
from distrun.methods.servers.layout import Layout, ServerShard
from distrun.methods.servers.store import Store


class Stores:
    """The stores of this server, by the number of the optimizer."""

    def __init__(self, fd: int, servers: int, server: int, copies: Copies | None = None) -> None:
        """The memory `fd` may have shares of an earlier process."""
        self._copies = copies
        self._fd, self._servers, self._server = fd, servers, server
        self._lock = threading.Lock()
        self._stores: dict[int, Store] = {}
        for offset, optimizer, description in memory.scan(fd):
            layout = Layout.from_json(description)

            def reopen(share: ServerShard, offset: int = offset, layout: Layout = layout) -> memory.Block:
                return memory.Block(fd, offset, layout.workers, len(share.parts), share.size, layout.slots)

            self._add(optimizer, Store(layout, servers, server, reopen))

    def restore(self, optimizer: int, copy: Copy) -> None:
        """Add the share of an optimizer, with the state of `copy`."""
        layout = Layout.from_json(copy.description)

        def make(share: ServerShard) -> memory.Block:
            block = self._created(optimizer, layout, share)
            block.restore(copy.version, copy.clocks, copy.steps, copy.arrays)
            return block

        self._add(optimizer, Store(layout, self._servers, self._server, make))

    @property
    def is_empty(self) -> bool:
        """Whether there are no shares."""
        return not self._stores

    def keep_all(self) -> None:
        """Save copies of all shares that have changed."""
        with self._lock:
            stores = list(self._stores.values())
        for store in stores:
            store.keep(False)

    def open(self, optimizer: int, layout: Layout, again: bool = False) -> Store:
        """Return the share of an optimizer. The first call makes it. `again`: the worker has opened it before.

        Raises:
            MismatchError: another worker has a different layout, or the share is lost.
        """
        with self._lock:
            store = self._stores.get(optimizer)
            if store is None and again:
                raise MismatchError(
                    f"server {self._server} was lost before there was a copy of its part of this optimizer: start the "
                    "job again"
                )
            if store is None:
                make = partial(self._created, optimizer, layout)
                store = self._add(optimizer, Store(layout, self._servers, self._server, make))
        if store.layout != layout:
            raise MismatchError(_difference(store.layout, layout))
        return store

    def _created(self, optimizer: int, layout: Layout, share: ServerShard) -> memory.Block:
        parts, text = len(share.parts), layout.to_json()
        return memory.create(self._fd, optimizer, text, layout.workers, parts, share.size, layout.slots)

    def _add(self, optimizer: int, store: Store) -> Store:
        self._stores[optimizer] = store
        if (copies := self._copies) is not None:

            def keep(has_changed: bool) -> None:
                is_due = has_changed or not copies.is_newest(optimizer, store.block.version, store.block.clocks)
                if is_due and (copy := store.copied()) is not None:
                    copies.save(optimizer, copy)

            def keep_left() -> None:
                left = [worker for worker, clock in enumerate(store.block.clocks) if clock == LEFT]
                copies.save_left(optimizer, left)

            store.keep, store.keep_left = keep, keep_left
        return store


def _difference(theirs: Layout, ours: Layout) -> str:
    """Return a sentence about the first difference between the layouts of two workers."""
    remedy = "all ranks must make the same optimizer for the same model"
    if len(theirs.parameters) != len(ours.parameters):
        return f"one rank has {len(theirs.parameters)} parameters and another {len(ours.parameters)}: {remedy}"
    for one, other in zip(theirs.parameters, ours.parameters, strict=True):
        if one != other:
            return (
                f"parameter {one.name} of shape {one.shape} is {other.name} of shape {other.shape} elsewhere: {remedy}"
            )
    if theirs.rules != ours.rules:
        return f"the settings of the optimizer differ between ranks: {remedy}"
    return f"staleness 0 on some ranks and another on others cannot be, nor {theirs.workers} workers: {remedy}"
