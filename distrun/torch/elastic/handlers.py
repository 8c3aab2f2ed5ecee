"""Handlers: how the things that a `TorchState` is made of are kept and sent, by their types."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from distrun.elastic.part import Part
from distrun.elastic.stateful import advance, stay
from distrun.errors import UsageError
from distrun.runtime.world import world
from distrun.torch.state.skeletons import places, with_tensors, without_tensors


class StateHandler(Part):
    """The base of all handlers, and of your own: `(type, handler)` at the head of `get_handler_registry()` adds one.

    A handler as Horovod has it overrides `save`, `restore` and `sync`, which gives all ranks the value of rank 0. A
    state with such a handler goes back to its last commit whenever a rank is lost, as Horovod's do. Other handlers need
    no copy: they override the methods of `distrun.elastic.part.Part`.
    """

    def __init__(self, value: Any) -> None:
        """`value` is the attribute of the state."""
        self.value = value

    def set_value(self, value: Any) -> None:
        """Take another value: the attribute of the state was set."""
        self.value = value
        self.save()

    def sync(self) -> None:
        """Give all ranks the value of rank 0, in handlers that override it; the others leave it to the state."""

    def describe(self) -> Any:
        """Return all of it but its tensors."""
        return None

    def adopt(self, description: Any) -> None:
        """Prepare to become what the donor has described."""

    def meet(self) -> None:
        """Call `sync`."""
        self.sync()

    @property
    def is_horovods(self) -> bool:
        """Whether this handler sends its value by itself."""
        return type(self).sync is not StateHandler.sync


class ModelStateHandler(StateHandler):
    """The handler of a module: its parameters and buffers, in place."""

    def __init__(self, value: torch.nn.Module) -> None:
        """`value` is the module."""
        super().__init__(value)
        self._saved: Any = None
        self._description: Any = None

    def save(self) -> None:
        """Keep a copy of its state_dict."""
        self._saved = copied(self.value.state_dict(), self._saved)

    def restore(self) -> None:
        """Go back to the copy."""
        self.value.load_state_dict(self._saved)

    def describe(self) -> Any:
        """Return the skeleton of its state_dict."""
        return without_tensors(dict(self.value.state_dict()), [])

    def adopt(self, description: Any) -> None:
        """Check that this rank's module is of the same kind as the donor's.

        Raises:
            UsageError: it has other parameters or buffers.
        """
        own = self.describe()
        for name in {**description, **own}:
            ours, theirs = own.get(name), description.get(name)
            if ours != theirs and (places(ours) or places(theirs)):
                raise UsageError(
                    f"{type(self.value).__name__}.{name} is {_told(ours)} on rank {world.rank()}, and {_told(theirs)} "
                    "on the rank whose state it is to take: make the same model on all ranks"
                )
        self._description = description if own != description else None

    def tensors(self) -> Sequence[Tensor]:
        """Return its parameters and buffers."""
        found: list[Tensor] = []
        without_tensors(dict(self.value.state_dict()), found)
        return found

    def complete(self) -> None:
        """Take over what is no tensor (`get_extra_state`)."""
        if self._description is not None:
            self.value.load_state_dict(with_tensors(self._description, list(self.tensors())))


class ObjectStateHandler(StateHandler):
    """The handler of whatever has `state_dict` and `load_state_dict`: schedulers, samplers."""

    def __init__(self, value: Any) -> None:
        """`value` is the object."""
        super().__init__(value)
        self._saved: Any = None
        self._description: Any = None
        self._received: list[Tensor] | None = None

    def save(self) -> None:
        """Keep a copy of its state_dict."""
        self._saved = copied(self.value.state_dict(), self._saved)

    def restore(self) -> None:
        """Go back to the copy."""
        self._description = self._received = None
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def advance(self) -> None:
        """Tell it that a step is done, if it wants to know."""
        advance(self.value)

    def stay(self) -> None:
        """Deal out what is left, if it is a place in the data."""
        stay(self.value)

    def describe(self) -> Any:
        """Return the skeleton of its state_dict."""
        return without_tensors(self.value.state_dict(), [])

    def adopt(self, description: Any) -> None:
        """Note the donor's skeleton."""
        self._description = description
        self._received = None

    def tensors(self) -> Sequence[Tensor]:
        """Return its tensors; room for the donor's where this rank has others, or none yet."""
        own: list[Tensor] = []
        skeleton = without_tensors(self.value.state_dict(), own)
        if self._description is None:  # the donor's
            return own
        there = places(self._description)
        self._received = own if places(skeleton) == there else [place.empty() for place in there]
        return self._received

    def complete(self) -> None:
        """Load the donor's state."""
        own: list[Tensor] = []
        skeleton = without_tensors(self.value.state_dict(), own)
        if self._received is not None:
            self._load(with_tensors(self._description, self._received))
        elif places(skeleton) == places(self._description):  # the tensors are the donor's already
            self._load(with_tensors(self._description, own))
        self._description = self._received = None

    def _load(self, state: Any) -> None:
        self.value.load_state_dict(state)


class GradScalerStateHandler(ObjectStateHandler):
    """The handler of a `GradScaler`."""

    def abandon(self) -> None:
        """Forget which optimizers' gradients have been unscaled, as `update` does at the end of a step."""
        if self.value.is_enabled():
            self.value._per_optimizer_states.clear()

    def _load(self, state: Any) -> None:
        if state:  # empty where it is not enabled
            super()._load(state)


def copied(state: Any, before: Any) -> Any:
    """Return a copy of a state_dict, in the memory of the copy before it where it fits."""
    tensors: list[Tensor] = []
    old: list[Tensor] = []
    skeleton = without_tensors(state, tensors)
    if places(without_tensors(before, old)) != places(skeleton):
        old = [torch.empty_like(tensor) for tensor in tensors]
    with torch.no_grad():
        for kept, tensor in zip(old, tensors, strict=True):
            kept.copy_(tensor)
    return with_tensors(copy.deepcopy(skeleton), old)


def _told(entry: Any) -> str:
    there = places(entry)
    if not there:
        return "missing" if entry is None else "no tensor"
    return f"{str(there[0].dtype).removeprefix('torch.')}{list(there[0].shape)}"
