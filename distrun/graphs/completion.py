"""Completion: a thread of distrun that completes operations, for framework threads that must not wait.

The collectives of a TensorFlow 1 graph are not ordered: each rank starts them in its own order, on the threads of its
session. If each collective blocked a thread, all threads of two ranks could wait for different collectives, a deadlock.
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
"""Called once when operations are done, with None or the error."""


class _UnderWay:
    """Consecutive operations. One of them is under way."""

    def __init__(self, operations: Operations[None], finish: Finish) -> None:
        self._operations = operations
        self._finish = finish
        self.handle: Handle | None = None

    def advance(self) -> bool:
        """Take the result of the current operation, and start the next one. Return whether there is a next one."""
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
    """The thread, which starts with the first operations.

    While operations are under way, it waits until any of them is done, which makes progress with all of them.
    """

    title = "a collective of a graph"

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way: list[_UnderWay] = []
        self._thread: threading.Thread | None = None

    def start(self, operations: Operations[None], finish: Finish) -> None:
        """Begin `operations` without waiting. `finish` is called here if the first one cannot begin, else by the
        thread."""
        begun = _UnderWay(operations, finish)
        self._under_way.append(begun)  # before `advance`, or the thread could miss its end
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
        """Whether any operation is done. The engine's `wait` treats this object as a handle and reads it."""
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
            except BaseException as error:  # it has failed the job, and with it all operations under way
                log.debug("while waiting for %s: %s", self.title, error)
