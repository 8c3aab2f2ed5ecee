"""Operations completed by a thread of ours, for threads that must not wait.

Nothing orders the collectives of a graph of TensorFlow 1: each rank starts them in an order of its own, by as many
threads as its session has. If each held one while it waits, ranks whose threads wait for different ones would wait for
ever.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable

from distrun.graphs.prepared import Operations
from distrun.runtime.operations.handle import Handle

log = logging.getLogger("distrun")

Finish = Callable[[BaseException | None], None]
"""Called once when operations are done, with what has gone wrong."""


class _UnderWay:
    """Operations, the current one of which is under way."""

    def __init__(self, operations: Operations[None], finish: Finish) -> None:
        self._operations = operations
        self._finish = finish
        self.handle: Handle | None = None

    def advance(self) -> bool:
        """Take the result of the current operation, and start the next one; return whether there is one."""
        try:
            if self.handle is not None:
                self.handle.wait()
            self.handle = next(self._operations)
            self.handle.engine.run(self.handle)
        except StopIteration:
            self._finish(None)
        except BaseException as error:
            self._finish(error)
        else:
            return True
        return False


class CompletionThread:
    """The thread, which starts with the first operations. While any are under way it waits for whichever is done first,
    and so makes progress."""

    title = "a collective of a graph"

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way: list[_UnderWay] = []
        self._thread: threading.Thread | None = None

    def start(self, operations: Operations[None], finish: Finish) -> None:
        """Begin operations; never waits. `finish` is called here if the first one cannot begin, else by the thread."""
        begun = _UnderWay(operations, finish)
        self._under_way.append(begun)  # first, or its end could be missed
        if not begun.advance():
            self._under_way.remove(begun)
            return
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="distrun-completion", daemon=True)
                self._thread.start()
            self._changed.notify()

    deadline = math.inf

    @property
    def done(self) -> bool:
        """Whether any operation is done; looked at by the engine that waits for that."""
        return any(handle.done for handle in self._handles())

    def _handles(self) -> list[Handle]:
        return [each.handle for each in tuple(self._under_way) if each.handle is not None]

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._handles():
                    self._changed.wait()
            self._wait()
            for each in tuple(self._under_way):
                if each.handle is not None and each.handle.done and not each.advance():
                    self._under_way.remove(each)

    def _wait(self) -> None:
        """Return when any operation is done."""
        for handle in self._handles()[:1]:
            try:
                handle.engine.wait(self)
            except BaseException as error:  # which has failed the job, and with it all that is under way
                log.debug("while waiting for %s: %s", self.title, error)
