"""Random numbers: some that all ranks must draw alike, and some that each must draw for itself.

Outside of a training loop all ranks draw the same from torch's generators: weights, splits of the data, the order of
the samples, the draws of an evaluation. Within the body of a training loop, and while samples are loaded, each rank
draws from its own stream, because its samples differ: dropout, noise, augmentation. Scripts use Python's and numpy's
generators to decide what to do next, so these are common in the loop as well, and the rank's own only while samples are
loaded.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

import distrun

_MIX = 0x9E3779B97F4A7C15  # so that adjacent ranks get distant seeds


def own_seed(seed: int, rank: int) -> int:
    """Return the seed of a rank's own stream, given the common seed."""
    return (seed + _MIX * (rank + 1)) % (1 << 63)


class _Streams:
    """The common stream and the rank's own stream of some generators. One of the two is in use."""

    def __init__(self, get: Callable[[], Any], put: Callable[[Any], None], begin: Callable[[], Any]) -> None:
        self._get, self._put, self._begin = get, put, begin
        self._other: Any = None
        self.is_own = False

    def use(self, own: bool) -> bool:
        """Switch to one of the streams. Return whether the own one was in use."""
        before = self.is_own
        if own != before:
            state, self._other = self._other, self._get()
            self._put(self._begin() if state is None else state)
            self.is_own = own
        return before


def _torch_generators() -> list[torch.Generator]:
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return [torch.default_generator]
    return [torch.default_generator, torch.cuda.default_generators[torch.cuda.current_device()]]


def _torch_states() -> list[torch.Tensor]:
    return [generator.get_state() for generator in _torch_generators()]


def _put_torch(states: list[torch.Tensor]) -> None:
    for generator, state in zip(_torch_generators(), states, strict=False):
        generator.set_state(state)


def _begin_torch() -> list[torch.Tensor]:
    seed = own_seed(torch.initial_seed(), distrun.rank())
    return [torch.Generator(each.device).manual_seed(seed).get_state() for each in _torch_generators()]


def _put_python(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])


def _begin_python() -> tuple[Any, Any]:
    seed = own_seed(torch.initial_seed(), distrun.rank())
    return random.Random(seed).getstate(), np.random.RandomState(seed % (1 << 32)).get_state()


of_torch = _Streams(_torch_states, _put_torch, _begin_torch)
_of_python = _Streams(lambda: (random.getstate(), np.random.get_state()), _put_python, _begin_python)


@contextmanager
def common() -> Iterator[None]:
    """A context in which all generators use the common stream."""
    before = of_torch.use(own=False), _of_python.use(own=False)
    try:
        yield
    finally:
        of_torch.use(own=before[0])
        _of_python.use(own=before[1])


States = tuple[list[torch.Tensor], Any, Any]
"""The states of torch's, Python's and numpy's generators."""


def states() -> States:
    """Return the current states of all generators."""
    return [state.cpu() for state in _torch_states()], random.getstate(), np.random.get_state()


def put(states: States) -> None:
    """Put all generators into these states."""
    _put_torch(states[0])
    _put_python(states[1:])


@contextmanager
def kept() -> Iterator[None]:
    """A context that restores the states of all generators at its end."""
    before = states()
    try:
        yield
    finally:
        put(before)


class Loading:
    """The state of Python's and numpy's generators while samples are loaded in this process.

    Switching them takes about ten microseconds, so it is done only if loading the first samples has drawn from them.
    """

    def __init__(self) -> None:
        self._looks = 2
        self._draws = False

    @contextmanager
    def own(self) -> Iterator[None]:
        """A context in which all generators use the rank's own stream."""
        of_torch.use(own=True)
        if not self._draws and not self._looks:
            yield
            return
        _of_python.use(own=True)
        before = random.getstate(), _position()
        try:
            yield
        finally:
            if self._looks:
                self._looks -= 1
                self._draws |= before != (random.getstate(), _position())
            _of_python.use(own=False)


def _position() -> Any:
    """Return what changes in the state of numpy's generator with every draw: comparing all of it would be slow."""
    state: Any = np.random.get_state()
    return state[2], state[1][0]


def agree(name: str) -> None:
    """Give all ranks rank 0's common stream, which must be in use."""
    of_rank_0 = distrun.broadcast_object(states() if distrun.rank() == 0 else None, 0, name)
    if distrun.rank():
        put(of_rank_0)
