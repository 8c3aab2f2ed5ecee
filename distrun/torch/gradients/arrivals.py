"""The streams on which the gradients of a bucket were produced, for models that compute on more than one stream."""

from __future__ import annotations

from collections.abc import Iterable

from distrun.runtime.gpu.driver import Driver
from distrun.torch.cuda import TorchArena


class Arrivals:
    """The streams that have used a bucket's memory and gradients since the bucket was last sent."""

    def __init__(self, arena: TorchArena) -> None:
        self._arena = arena
        self._streams: set[int] = set()

    def note(self) -> int:
        """Note that a gradient is complete for work that is queued on the current stream later; return the stream."""
        stream = self._arena.current_stream()
        self._streams.add(stream)
        return stream

    def add(self, stream: int) -> None:
        """Note that the bucket depends on work that was queued on `stream`."""
        self._streams.add(stream)

    def clear(self) -> None:
        """Forget the streams, since the gradients will not be used."""
        self._streams.clear()

    def join(self, driver: Driver, stream: int) -> set[int]:
        """Let work that is queued on `stream` later read the gradients; return the other streams that they come from.

        The caller is inside `driver.use`, here and in `release`.
        """
        others = self._streams - {stream}
        for other in others:
            driver.wait(stream, driver.record(other))
        self._streams.clear()
        return others

    def release(self, driver: Driver, stream: int, others: Iterable[int]) -> None:
        """Let the gradients be freed after the work that is now queued on `stream`: the streams that own their memory
        wait for it."""
        read = driver.record(stream)
        for other in others:
            driver.wait(other, read)
