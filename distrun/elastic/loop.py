"""The loop around a training function, which calls it again whenever ranks have come or gone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from distrun.elastic.interrupt import HostsUpdatedInterrupt
from distrun.elastic.state import State
from distrun.runtime import collectives
from distrun.runtime.world import regroup

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_State = TypeVar("_State", bound=State)

_is_finished = False  # after the last generation, a training function runs as in a job that is not elastic


def run(func: Callable[Concatenate[_State, _Arguments], _Result]) -> Callable[Concatenate[_State, _Arguments], _Result]:
    """Make a training function elastic: `@elastic.run`.

    When a rank is lost, or ranks are to come or go, the next collective or step boundary raises an exception on all
    ranks, which leaves the function. When the new ranks have connected and have the same state, it is called again. So
    it continues from what is in `state`, and objects that it makes itself are made again. Newcomers run the script from
    its start, up to this call.

    Under a launcher that is not elastic the ranks take the state of rank 0, and the function is called once.

    Args:
        func: takes the state as its first argument. Collectives and weights belong inside it, or before it where every
            rank passes. Of its arguments, it may change only `state`.

    Returns:
        A function with the same arguments and the same result. It returns when `func` has returned on all ranks.
    """

    @functools.wraps(func)
    def wrapper(state: _State, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        global _is_finished
        if _is_finished or not regroup.is_elastic():
            state.sync()
            return func(state, *args, **kwargs)
        regroup.enroll()
        result = _train(state, lambda: func(state, *args, **kwargs))
        regroup.finish()
        _is_finished = True
        return result

    return wrapper


def run_fn(func: Callable[..., Any], reset: Callable[[], object]) -> Callable[..., Any]:
    """Do what `run` does, by Horovod's name. `reset` is not called: the runtime itself leaves and joins worlds."""
    return run(func)


def _train(state: State, func: Callable[[], _Result]) -> _Result:
    state.begin()
    is_back = is_aborted = False
    while True:
        try:
            state.recover(is_aborted)
            if is_back:
                state.on_reset()
            state.elect()
            state.sync()
            result = func()
            collectives.barrier(name="elastic.finish")
            return result
        except HostsUpdatedInterrupt:
            reason, is_aborted = regroup.planned() or "the training function raised HostsUpdatedInterrupt", False
        except Exception as error:
            if not state.is_abort(error):
                raise
            reason, is_aborted = state.reason_of(error), True
        # Not in the `except` clause, where the error would keep the function's objects alive: loaders, activations.
        regroup.rejoin(reason)
        is_back = True
