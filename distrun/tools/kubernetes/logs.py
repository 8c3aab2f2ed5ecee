"""Showing the log of a pod to its end, over connections that may end before it does."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator

from distrun.tools.kubernetes.client import NOT_FOUND, ApiError, Client

_PAUSE = 1.0  # seconds from the end of a connection to the next one
# 2030-01-31T12:00:00.123456789Z [0] epoch 1    (one node's times all have the same length, so they compare as text)
_STAMPED = re.compile(rb"(\d{4}-\d\d-\d\dT\S+) (.*)", re.DOTALL)


class PodLog(threading.Thread):
    """Prints the whole log of a pod, each line once.

    A connection ends early when the node rotates the log file, when the API restarts, or when a proxy has seen no data
    for long. The next connection gives the whole log again, and the lines already shown are recognised by their time.
    """

    def __init__(self, client: Client, pod: str, say: Callable[[str], None]) -> None:
        """Args: the cluster, the name of the pod, and what prints for the user why the log cannot be read now."""
        super().__init__(name=f"distrun log {pod}", daemon=True)
        self._client = client
        self._pod = pod
        self._say = say
        self._stopped = threading.Event()
        self._last = b""
        self._others: set[bytes] = set()  # lines without a time, which come from the node

    def stop(self, timeout: float) -> None:
        """Stop printing, and wait up to `timeout` seconds for the thread's end.

        A thread that still runs while the interpreter ends may abort the process. One that only waits for the cluster
        does no harm, even if it takes longer.
        """
        self._stopped.set()
        self.join(timeout)

    def run(self) -> None:
        while not self._stopped.is_set():
            is_over = self._is_over()  # before reading: if the pod has ended, the log is complete
            try:
                for line in _lines(self._client.log(self._pod)):
                    if self._stopped.is_set():
                        return
                    if is_over or line.endswith(b"\n"):  # half a line comes again with the next connection, whole
                        self._show(line)
            except ApiError as error:
                if error.code == NOT_FOUND:
                    return
                if not self._stopped.is_set():
                    self._say(f"{error}; trying again")
                is_over = False
            except OSError:  # stdout is closed
                return
            if is_over:
                return
            self._stopped.wait(_PAUSE)

    def _is_over(self) -> bool:
        try:
            pod = self._client.pod(self._pod)
        except ApiError:
            return False
        return pod is None or pod.get("status", {}).get("phase") in ("Succeeded", "Failed")

    def _show(self, line: bytes) -> None:
        found = _STAMPED.fullmatch(line)
        if found is None:
            text = b"" if line in self._others else line
            self._others.add(line)
        else:
            text = found[2] if found[1] > self._last else b""
            self._last = max(self._last, found[1])
        while text:
            text = text[os.write(1, text) :]


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the lines of a text that comes in pieces, with their line ends. The last line may have none."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from (line + b"\n" for line in lines)
    if rest:
        yield rest
