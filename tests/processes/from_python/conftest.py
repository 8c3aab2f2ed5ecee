"""A real kernel of Jupyter for tests of notebooks."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Iterator

import psutil
import pytest

TIMEOUT = 120


class Kernel:
    """A kernel that runs cells one at a time."""

    def __init__(self, manager, client):
        self.manager = manager
        self._client = client
        self.printed = ""
        """The text that the cell has printed."""
        self.error = None
        """The name of the exception that has ended the cell."""
        self.shown = ""
        """The value of the cell, or its traceback."""

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self.manager.provisioner.process.pid)

    def begin(self, cell: str) -> None:
        """Start a cell."""
        self.printed, self.error, self.shown = "", None, ""
        self._cell = self._client.execute(cell)

    def wait_for(self, *words: str) -> None:
        """Wait until the cell that runs has printed all of these."""
        while not all(word in self.printed for word in words):
            assert self._take(), f"the cell has ended and printed {self.printed!r}, {self.shown}"

    def end(self) -> str:
        """Wait for the end of the cell, and return what it has printed and shown."""
        while self._take():
            pass
        return self.printed + self.shown

    def _take(self) -> bool:
        """Take the next message about the cell. Returns whether it still runs."""
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            try:
                message = self._client.get_iopub_msg(timeout=deadline - time.monotonic())
            except queue.Empty:
                break
            if message["parent_header"].get("msg_id") != self._cell:
                continue
            content = message["content"]
            match message["msg_type"]:
                case "stream":
                    self.printed += content["text"]
                case "execute_result":
                    self.shown = content["data"]["text/plain"]
                case "error":
                    self.error, self.shown = content["ename"], "\n".join(content["traceback"])
                case "status":
                    return content["execution_state"] != "idle"
            return True
        raise AssertionError(f"nothing came for {TIMEOUT} s after {self.printed!r}")


@pytest.fixture
def jupyter(tmp_path, monkeypatch) -> None:
    """Give Jupyter, which must be installed, a folder of its own, and a PATH without the commands of distrun."""
    for name in ("ipykernel", "nbclient"):
        pytest.importorskip(name, reason="it comes with the extra dev")
    for variable in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(variable, str(tmp_path / "jupyter"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # a kernel that is killed leaves its cell there


@pytest.fixture
def kernel(jupyter, tmp_path) -> Iterator[Kernel]:
    """Return a kernel."""
    from jupyter_client.manager import start_new_kernel

    with open(os.devnull, "wb") as nothing:
        manager, client = start_new_kernel(kernel_name="python3", cwd=str(tmp_path), stderr=nothing)
    try:
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
