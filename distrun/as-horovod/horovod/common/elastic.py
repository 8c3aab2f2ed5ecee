"""Elastic training: see `distrun.elastic`."""

from typing import Any, NoReturn

from distrun.elastic import ObjectState as ObjectState, State as State, run as run
from distrun.elastic.loop import run_fn as run_fn
from distrun.errors import UsageError


def refuse(name: str) -> NoReturn:
    """Refuse a name of elastic training.

    Raises:
        UsageError: always.
    """
    raise UsageError(f"horovod's elastic.{name} is not there yet: keep the training's state in checkpoints")


class Absent:
    """The base of what is not there yet. Making one is refused."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Refuse.

        Raises:
            UsageError: always.
        """
        refuse(type(self).__name__)


class WorkerNotificationManager:
    """Horovod's way of telling states that hosts have come or left. Here they ask the runtime, and nothing is told."""

    def init(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the launcher is heard anyway."""

    def register_listener(self, listener: State) -> None:
        """Do nothing: a state hears of changes by itself."""

    def remove_listener(self, listener: State) -> None:
        """Do nothing, as `register_listener`."""


notification_manager = WorkerNotificationManager()
