"""Telling the launcher what the ranks of this host were doing when the first one failed."""

from __future__ import annotations

import time
from collections.abc import Iterable

from distrun.runner.agent.launcher_connection import LauncherConnection
from distrun.runner.agent.rank_process import RankProcess
from distrun.runner.protocol.frames import Frame, FrameKind
from distrun.tracing.activity import activity_in


class Activities:
    """Tells once: what ranks do afterwards is a consequence of the failure, or of the signal that ends them."""

    def __init__(self, launcher: LauncherConnection) -> None:
        """Args: the launcher, which is told."""
        self._launcher = launcher
        self._has_told = False

    def tell(self, ranks: Iterable[RankProcess]) -> None:
        """Tell of all ranks of which something is known, unless that was done before."""
        if self._has_told:
            return
        self._has_told = True
        now = time.monotonic_ns()
        for rank in ranks:
            if rank.events is not None and (told := activity_in(rank.events).told(now)):
                self._launcher.send(Frame(FrameKind.ACTIVITY, rank.number, told.to_json()))
