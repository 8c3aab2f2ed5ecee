"""Streams on which the gradients of a bucket have been produced, where more than one stream computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from distrun.runtime.gpu.driver import Driver
from distrun.torch.cuda import TorchArena


class Arrivals:
    """The streams on which a bucket's memory and gradients were worked at since the bucket was sent last."""

    def __init__(self, arena: TorchArena) -> None:
        self._arena = arena
        self._streams: set[int] = set()

    def note(self) -> None:
        """A gradient is complete, for what is queued on the current stream from now on."""
        self._streams.add(self._arena.current_stream())

    def add(self, stream: int) -> None:
        """Something else that the bucket needs was queued on `stream`."""
        self._streams.add(stream)

    def clear(self) -> None:
        """The gradients will not be used."""
        self._streams.clear()

    @contextmanager
    def joined(self, driver: Driver, stream: int) -> Iterator[None]:
        """Within this context what is queued on `stream` may read the gradients, and afterwards they may be let go of:
        the streams that they come from, whose memory it is, wait for what was queued here."""
        others = self._streams - {stream}
        for other in others:
            driver.wait(stream, driver.record(other))
        yield
        if others:
            read = driver.record(stream)
            for other in others:
                driver.wait(other, read)
        self._streams.clear()
