"""Elastic training: see `distrun.elastic`."""

from typing import Any

from distrun.elastic import ObjectState as ObjectState, State as State, run as run
from distrun.elastic.loop import run_fn as run_fn


class WorkerNotificationManager:
    """Horovod's notification of states about changed hosts. It does nothing here, because states ask the runtime."""

    def init(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the runtime listens to the launcher anyway."""

    def register_listener(self, listener: State) -> None:
        """Do nothing: a state asks the runtime for changes."""

    def remove_listener(self, listener: State) -> None:
        """Do nothing, like `register_listener`."""


notification_manager = WorkerNotificationManager()
