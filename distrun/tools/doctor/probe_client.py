"""The connection to a probe: requests and answers, one at a time."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from distrun.runner.hosts.introduction import introduce
from distrun.runner.hosts.program import Program
from distrun.runner.protocol.frames import FrameDecoder
from distrun.runner.protocol.handshake import HostError, HostInfo
from distrun.runner.shipping.delivery import Delivery


class ProbeClient:
    """The doctor's end of one probe."""

    def __init__(self, program: Program, timeout: float) -> None:
        """Wait for the first frame of a probe that has just been started. It is closed if it sends nothing.

        Raises:
            HostError: no probe has started.
        """
        self._program = program
        self._decoder = FrameDecoder()
        self._lock = threading.Lock()
        self._lost: HostError | None = None
        try:
            introduction = introduce(program, Delivery(), b"", time.monotonic() + timeout)
            self.note = introduction.note
            """A remark about the distrun that was copied to the host, if it was."""
            self.versions = HostInfo.from_json(introduction.payload)
            """The versions of its distrun and its Python."""
        except BaseException:
            program.close()
            raise

    def ask(self, what: str, timeout: float, **arguments: Any) -> dict[str, Any]:
        """Call the method `what` of `probe.Probe` with some arguments, and return the answer.

        Raises:
            HostError: the probe could not find it out, or does not answer. Then it is not asked again.
        """
        with self._lock:
            if self._lost is not None:
                raise self._lost
            try:
                found = self._exchange({"ask": what, **arguments}, time.monotonic() + timeout)
            except TimeoutError:
                self._lost = HostError(f"it did not answer the question for {what!r} within {timeout:g} s")
                raise self._lost from None
            except OSError as error:
                self._lost = HostError(f"the connection was lost: {error}")
                raise self._lost from None
        if "error" in found:
            raise HostError(found["error"])
        return found

    @property
    def is_lost(self) -> bool:
        """Whether the probe has stopped answering."""
        return self._lost is not None

    def close(self) -> None:
        """End the probe, which exits when its stdin ends."""
        self._program.end_input()
        self._program.wait()
        self._program.close()

    def _exchange(self, request: dict[str, Any], deadline: float) -> dict[str, Any]:
        self._program.write(json.dumps(request).encode("ascii") + b"\n")
        while True:
            data = self._program.read(max(0.001, deadline - time.monotonic()))
            if not data:
                raise ConnectionError("the program there has ended")
            for frame in self._decoder.feed(data):
                found: dict[str, Any] = json.loads(frame.payload)
                return found
