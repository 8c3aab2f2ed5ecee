"""Elastic training: see `distrun.elastic`."""

from typing import Any

from distrun.elastic import ObjectState as ObjectState, State as State, run as run
from distrun.elastic.loop import run_fn as run_fn


class WorkerNotificationManager:
    """Horovod's way of telling states that hosts have come or left. Here they ask the runtime, and nothing is told."""

    def init(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the launcher is heard anyway."""

    def register_listener(self, listener: State) -> None:
        """Do nothing: a state hears of changes by itself."""

    def remove_listener(self, listener: State) -> None:
        """Do nothing, as `register_listener`."""


notification_manager = WorkerNotificationManager()
