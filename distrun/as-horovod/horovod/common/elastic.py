"""Elastic training, which is not there yet: the names exist, and say so when they are used."""

from collections.abc import Callable
from typing import Any, NoReturn

from distrun.errors import UsageError


def refuse(name: str) -> NoReturn:
    """Refuse a name of elastic training.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        f"horovod's elastic.{name} is not there yet, since the number of ranks is fixed: call the training function "
        "itself, and keep its state in checkpoints"
    )


def run(func: Callable[..., Any]) -> NoReturn:
    """Refuse to make a function elastic."""
    refuse("run")


def run_fn(func: Callable[..., Any], reset: Callable[[], None]) -> NoReturn:
    """Refuse to make a function elastic."""
    refuse("run_fn")


class State:
    """The state of a training that may lose and gain ranks. Making one is refused."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Refuse.

        Raises:
            UsageError: always.
        """
        refuse(type(self).__name__)


class ObjectState(State):
    """A state of plain objects."""
