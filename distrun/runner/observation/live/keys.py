"""The keys of the live view, read one by one while the launcher is in the foreground. The terminal's modes are
restored.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import termios
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_LOOK_EVERY = 0.5  # seconds between two checks whether this process is in the foreground
_SECOND_Q = 3.0  # seconds after `q` while a second `q` ends the job
_ESCAPE = "\x1b"


class Keys:
    """Reads keys in its own thread."""

    def __init__(self, say: Callable[[str], None], descriptor: int = 0, is_client: bool = False) -> None:
        """
        Args:
            say: prints a line for the user.
            descriptor: the descriptor of the terminal.
            is_client: whether the job belongs to another launcher. Then a single `q` ends this process, and not the
                job.
        """
        self.prompt = ""
        """The question that the user is answering. Empty = none."""
        self.is_closed = False
        """Whether the user has closed the view."""
        self.on_stack: Callable[[int], None] | None = None
        """Shows the stack of a rank."""
        self.on_log: Callable[[int], None] | None = None
        """Shows the last lines of a rank's output."""
        self._say = say
        self._descriptor = descriptor
        self._is_client = is_client
        self._is_ending = False
        self._before: list[Any] | None = None
        self._lock = threading.Lock()
        self._asked: Callable[[int], None] | None = None
        self._digits = ""
        self._closed_at = 0.0
        self._thread = threading.Thread(target=self._read, name="distrun keys", daemon=True)

    def start(self) -> None:
        """Begin to read, if the descriptor is a terminal."""
        if os.isatty(self._descriptor):
            atexit.register(self.close)
            self._thread.start()

    def close(self) -> None:
        """Restore the terminal. May be called by any thread, any number of times."""
        self._is_ending = True
        with self._lock:
            self._restore()
        atexit.unregister(self.close)

    # The terminal -----------------------------------------------------------------------------------------------------

    def _take_over(self) -> bool:
        """Switch the terminal to single keys without echo. Returns whether this process may read it at all."""
        with self._lock, suppress(OSError, termios.error):
            if self._is_ending or os.tcgetpgrp(self._descriptor) != os.getpgrp():
                return False
            modes = termios.tcgetattr(self._descriptor)
            if modes[3] & (termios.ICANON | termios.ECHO):
                self._before = [*modes[:6], list(modes[6])]
                modes[3] &= ~(termios.ICANON | termios.ECHO)
                modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
                termios.tcsetattr(self._descriptor, termios.TCSADRAIN, modes)
            return True
        return False

    def _restore(self) -> None:
        if self._before is not None:
            with suppress(OSError, termios.error):
                if os.tcgetpgrp(self._descriptor) == os.getpgrp():
                    termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)
            self._before = None

    def _read(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTIN, signal.SIGTTOU])
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        while not self._is_ending:
            if self.is_closed and time.monotonic() > self._closed_at + _SECOND_Q:
                self.close()
                return
            if not self._take_over():
                time.sleep(_LOOK_EVERY)
                continue
            if not poll.poll(1000 * _LOOK_EVERY):
                continue
            try:
                data = os.read(self._descriptor, 64)
            except OSError:
                continue
            if not data:
                return
            for key in data.decode(errors="ignore"):
                self._pressed(key)

    # Their meaning ----------------------------------------------------------------------------------------------------

    def _pressed(self, key: str) -> None:
        if self._asked is not None:
            self._answer(key)
        elif key in "qQ":
            self._quit()
        elif self.is_closed:
            return
        elif key in "sS" and self.on_stack is not None:
            self._ask("the stack of rank", self.on_stack)
        elif key in "lL" and self.on_log is not None:
            self._ask("the last lines of rank", self.on_log)

    def _ask(self, what: str, then: Callable[[int], None]) -> None:
        self._question, self._asked, self._digits = what, then, ""
        self.prompt = f"{what}: (number, Enter)"

    def _answer(self, key: str) -> None:
        if key.isdecimal() and key.isascii() and len(self._digits) < 6:
            self._digits += key
        elif key in "\x7f\x08":
            self._digits = self._digits[:-1]
        elif key in "\r\n":
            asked, self._asked, self.prompt = self._asked, None, ""
            if asked is not None:
                asked(int(self._digits or 0))
            return
        elif key in (_ESCAPE, "q"):
            self._asked, self.prompt = None, ""
            return
        self.prompt = f"{self._question}: {self._digits or '(number, Enter)'}"

    def _quit(self) -> None:
        if self._is_client or self.is_closed:
            self.leave()
            return
        self.is_closed, self._closed_at = True, time.monotonic()
        self._say(f"the view is closed, and the job goes on; q within {_SECOND_Q:.0f} s ends the job")

    def leave(self) -> None:
        """Restore the terminal, and interrupt this process as Ctrl-C does."""
        self.is_closed = True
        self.close()
        os.kill(os.getpid(), signal.SIGINT)
