"""`on_rank_zero`: what writes or logs, on rank 0 alone."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

from distrun.errors import UsageError
from distrun.runtime.world import world

T = TypeVar("T")


def on_rank_zero(thing: T) -> T:
    """Return `thing` on rank 0, and on other ranks a stand-in whose calls do nothing.

    It is for what writes or logs: a module (`wandb = distrun.on_rank_zero(wandb)`), a class or function
    (`distrun.on_rank_zero(SummaryWriter)("logs")`), or an object. Calls, attributes and `with` of the stand-in give
    stand-ins again, and attributes and items can be set. It has no value: using it as a number, a text, a condition or
    an iterable raises a `UsageError`, since the ranks would part ways.

    Raises:
        NotInitializedError: before `init()`.
    """
    stand_in: Any = _StandIn()
    return thing if world.rank() == 0 else stand_in


class _StandIn:
    __slots__ = ()

    def __call__(self, *arguments: Any, **options: Any) -> _StandIn:
        return self

    def __getattr__(self, name: str) -> _StandIn:
        if name.startswith("__"):  # what Python and other libraries ask any object for
            raise AttributeError(name)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __enter__(self) -> _StandIn:
        return self

    def __exit__(self, *raised: Any) -> None:
        pass

    def __repr__(self) -> str:
        return "<on rank 0 only>"

    def _refuse(self, *_: Any) -> NoReturn:
        raise UsageError(
            f"rank {world.rank()} asks for a value that on_rank_zero gives to rank 0 only: ask for it there, and send "
            "it by distrun.broadcast_object, or use it on rank 0 only"
        )

    __bool__ = __eq__ = __float__ = __int__ = __index__ = __len__ = _refuse
    __iter__ = __getitem__ = __str__ = __format__ = __fspath__ = _refuse
    __hash__ = object.__hash__
