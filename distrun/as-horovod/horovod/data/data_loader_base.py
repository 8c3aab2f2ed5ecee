"""Data loaders that prefetch in a thread."""

import queue
import threading
from collections.abc import Iterator
from typing import Any

_END = object()


class BaseDataLoader:
    """The base of loaders: a subclass defines the number of batches, and yields them."""

    def __len__(self) -> int:
        """Return the number of batches."""
        raise NotImplementedError(f"{type(self).__name__} has no __len__: let it return the number of batches")

    def _iterate(self) -> Iterator[Any]:
        """Yield the batches of an epoch."""
        raise NotImplementedError(f"{type(self).__name__} has no _iterate: let it yield the batches of an epoch")

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)

    def _process_batch(self, batch: Any) -> Any:
        """Return what the caller gets for a batch. This runs in the thread that iterates."""
        return batch


class AsyncDataLoaderMixin:
    """A mixin for loaders that prefetch: `class Ahead(AsyncDataLoaderMixin, Loader)`.

    A thread runs `_iterate` for one epoch after the other and puts batches into a queue. Its exceptions are raised in
    the thread that iterates. Without a queue (`async_loader_queue_size=0`) batches are fetched on demand.
    """

    def __init__(
        self, async_loader_queue_size: int = 64, debug_data_loader: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        """The loader's own arguments follow these, or are given by name.

        Args:
            async_loader_queue_size: the number of batches that are prefetched.
            debug_data_loader: whether to print a line when the next batch is not ready.
        """
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        super().__init__(*args, **kwargs)
        self._batches: queue.Queue[Any] = queue.Queue(max(1, async_loader_queue_size))
        self._is_closing = threading.Event()
        self._thread: threading.Thread | None = None

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of an epoch."""
        if self.async_loader_queue_size < 1:
            yield from super().__iter__()  # type: ignore[misc]  # the method of the loader
            return
        if self._thread is None:
            self._is_closing.clear()
            self._thread = threading.Thread(target=self._fetch, name="AsyncDataLoader", daemon=True)
            self._thread.start()
        while True:
            if self.debug_data_loader and self._batches.empty():
                print(f"{type(self).__name__}: waiting for the next batch")
            batch = self._batches.get()
            if batch is _END:
                return
            if isinstance(batch, _Failure):
                self._thread = None
                raise batch.error
            yield self._process_batch(batch)  # type: ignore[attr-defined]  # the loader's

    def close_async_loader(self) -> None:
        """End the thread, and drop what it has fetched. The next epoch starts a new one."""
        thread, self._thread = self._thread, None
        self._is_closing.set()
        while thread is not None and thread.is_alive():
            self._drop()
            thread.join(0.01)
        self._drop()

    def _drop(self) -> None:
        while not self._batches.empty():
            self._batches.get_nowait()

    def _fetch(self) -> None:
        try:
            while not self._is_closing.is_set():
                for batch in self._iterate():  # type: ignore[attr-defined]  # the loader's
                    self._batches.put(batch)
                    if self._is_closing.is_set():
                        return
                self._batches.put(_END)
        except Exception as error:
            self._batches.put(_Failure(error))


class _Failure:
    """An exception that the thread raised."""

    def __init__(self, error: Exception) -> None:
        self.error = error
