"""The live view of the launcher itself: a panel in its terminal, or a line from time to time without one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from distrun.runner.observation.consumer import JobEnd
from distrun.runner.observation.live.hub import Hub
from distrun.runner.observation.live.keys import Keys
from distrun.runner.observation.live.sentences import sentence
from distrun.runner.observation.live.snapshot import Snapshot
from distrun.runner.output.panel import Panel

if TYPE_CHECKING:
    from distrun.runner.planning.plan import LaunchPlan

LINE_EVERY = 30.0
"""Seconds between two lines without a terminal."""


class PlainView:
    """The viewer without a terminal. It reports new slow ranks at once."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        """Args: `say` prints a line for the user, and `clock` returns the time in seconds."""
        self._say = say
        self._clock = clock
        self._due = clock() + LINE_EVERY
        self._told: set[int] = set()

    def see(self, snapshot: Snapshot) -> None:
        """Print a line about the job, if it is due."""
        slow = {one.rank for one in snapshot.slow}
        is_new = bool(slow - self._told)
        self._told = slow
        if is_new or self._clock() >= self._due:
            self._due = self._clock() + LINE_EVERY
            self._say(sentence(snapshot))

    def end(self, snapshot: Snapshot) -> None:
        """Print nothing: the launcher reports the end of the job anyway."""


class PanelView:
    """The viewer in a terminal."""

    def __init__(self, panel: Panel, keys: Keys) -> None:
        """Args: `panel` is painted by the printing thread, and `keys` has the prompt and whether the view is closed."""
        from distrun.runner.observation.live.tables import lines

        self._lines = lines
        self._panel = panel
        self._keys = keys
        self._has_begun = False

    def see(self, snapshot: Snapshot) -> None:
        """Show the job."""
        if not self._has_begun:
            self._has_begun = True
            self._keys.start()
        if self._keys.is_closed:
            self._panel.show(())
        else:
            self._panel.show(self._lines(snapshot, *self._panel.size, self._keys.prompt))

    def end(self, snapshot: Snapshot) -> None:
        """Clear the panel, and restore the terminal."""
        self._keys.close()
        self._panel.show(())


class LiveView(Hub):
    """The consumer of `--live`."""

    def __init__(self, plan: LaunchPlan, say: Callable[[str], None], panel: Panel | None) -> None:
        """Args: `say` prints a line for the user, and `panel` is None without a terminal."""
        super().__init__(plan)
        self.keys = None if panel is None else Keys(say)
        if panel is None or self.keys is None:
            self.add(PlainView(say))
            return
        self.keys.on_log = lambda rank: say(self.log(rank))
        self.keys.on_stack = lambda rank: self.stack(rank, say)
        self.add(PanelView(panel, self.keys))

    def close(self, ending: JobEnd) -> None:
        """Send the last snapshot, and restore the terminal even if that fails."""
        try:
            super().close(ending)
        finally:
            if self.keys is not None:
                self.keys.close()
