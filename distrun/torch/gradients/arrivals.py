"""The streams on which the gradients of a bucket were produced, for models that compute on more than one stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from distrun.runtime.gpu.driver import Driver
from distrun.torch.cuda import TorchArena


class Arrivals:
    """The streams that have used a bucket's memory and gradients since the bucket was last sent."""

    def __init__(self, arena: TorchArena) -> None:
        self._arena = arena
        self._streams: set[int] = set()

    def note(self) -> None:
        """Note that a gradient is complete for work that is queued on the current stream later."""
        self._streams.add(self._arena.current_stream())

    def add(self, stream: int) -> None:
        """Note that the bucket depends on work that was queued on `stream`."""
        self._streams.add(stream)

    def clear(self) -> None:
        """Forget the streams, since the gradients will not be used."""
        self._streams.clear()

    @contextmanager
    def joined(self, driver: Driver, stream: int) -> Iterator[None]:
        """Let work that is queued on `stream` within this context read the gradients, and let them be freed afterwards:
        the streams that they come from, which own their memory, wait for that work."""
        others = self._streams - {stream}
        for other in others:
            driver.wait(stream, driver.record(other))
        yield
        if others:
            read = driver.record(stream)
            for other in others:
                driver.wait(other, read)
        self._streams.clear()
