"""A browser without a window, driven through its DevTools protocol on two pipes."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_COMMANDS, _ANSWERS = 3, 4  # the descriptors that a browser knows the pipes by


class Browser:
    """One page of a browser."""

    def __init__(self, address: str, profile: Path, width: int, height: int) -> None:
        """Start a browser for a page, with a folder for its own files; `with` opens the page."""
        program = next(filter(None, map(shutil.which, _NAMES)), None)
        if program is None:
            raise SystemExit(f"there is no browser: install one of {', '.join(_NAMES)}")
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()

        def take_pipes() -> None:
            for pipe, place in ((os.dup(commands), _COMMANDS), (os.dup(answers), _ANSWERS)):
                os.dup2(pipe, place)

        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
        self._process = subprocess.Popen(
            [program, *options, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=take_pipes,
            pass_fds=(_COMMANDS, _ANSWERS),
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._number, self._unread, self._session = 0, b"", ""
        self._address, self._size = address, {"width": width, "height": height}

    def evaluate(self, code: str) -> Any:
        """Return the value of an expression of JavaScript, for which it waits if it is a promise."""
        done = self._call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            raise RuntimeError(f"{code}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def picture(self) -> bytes:
        """Return what the page shows, as PNG."""
        return base64.b64decode(self._call("Page.captureScreenshot")["data"])

    def _call(self, method: str, **params: object) -> dict[str, Any]:
        self._number += 1
        command = {"id": self._number, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            data = os.read(self._answers, 1 << 20)
            if not data:
                raise ConnectionError("the browser has gone")
            self._unread += data
        message, _, self._unread = self._unread.partition(b"\0")
        return json.loads(message)

    def __enter__(self) -> Browser:
        try:
            target = self._call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            self._call("Emulation.setDeviceMetricsOverride", **self._size, deviceScaleFactor=1, mobile=False)
            self._call("Page.enable")
            self._call("Page.navigate", url=self._address)
            while self._read().get("method") != "Page.loadEventFired":
                pass
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *args: object) -> None:
        self._session = ""
        try:
            self._call("Browser.close")
        except OSError:
            pass  # it has gone already
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)
