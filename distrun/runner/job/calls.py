"""Calls of functions on ranks: pickling the call, and unpickling results and exceptions."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from distrun.errors import LaunchError


class RemoteTraceback(Exception):  # noqa: N818  # the name multiprocessing and concurrent.futures use
    """The cause of an exception that a rank raised: the traceback on that rank, as text."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(rank, text)
        self.rank = rank
        self.text = text

    def __str__(self) -> str:
        return f"on rank {self.rank}:\n{self.text}"


def pickled_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Return a call as bytes. Functions of notebooks, closures and lambdas are pickled by value.

    Raises:
        LaunchError: a part of the call cannot be pickled.
    """
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps((function, args, kwargs)))
    except Exception as error:
        raise LaunchError(f"{function!r} or its arguments cannot be pickled: {error}") from error


def result_of(rank: int, results: Mapping[int, bytes]) -> Any:
    """Return the result of a rank's call, unpickled from `results`, the bytes that each rank has sent.

    Raises:
        LaunchError: the rank has sent nothing, or something that cannot be unpickled here.
    """
    if rank not in results:
        raise LaunchError(f"rank {rank} exited with code 0 before the function returned")
    _, pickled, _ = pickle.loads(results[rank])
    try:
        return pickle.loads(pickled)
    except Exception as error:
        raise LaunchError(f"the result of rank {rank} cannot be unpickled here: {error}") from error


def raise_sent(rank: int, sent: bytes) -> NoReturn:
    """Raise the exception of a rank's call, unpickled from the bytes `sent`. See `raise_remote`."""
    _, pickled, text = pickle.loads(sent)
    raise_remote(rank, pickled, text)


def raise_remote(rank: int, pickled: bytes, text: str) -> NoReturn:
    """Raise the pickled exception of a rank, with its traceback on that rank, `text`, as its cause.

    Raises:
        LaunchError: the exception cannot be unpickled here.
    """
    try:
        error = pickle.loads(pickled)
        assert isinstance(error, BaseException)
    except Exception:  # its class does not exist here, or takes other arguments
        raise LaunchError(f"rank {rank} raised an exception that cannot be raised here:\n{text}") from None
    raise error from RemoteTraceback(rank, text)
