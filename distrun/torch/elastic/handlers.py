"""Handlers: the parts of a `TorchState`, by the types of its attributes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from distrun.elastic.part import Part, StatefulPart
from distrun.errors import UsageError
from distrun.runtime.world import world
from distrun.torch.state.skeletons import Skeleton, TensorSlot, take_apart


class StateHandler(Part):
    """The base of all handlers, and of your own: put `(type, handler)` first in `get_handler_registry()`.

    A handler like Horovod's overrides `save`, `restore` and `sync`, which gives all ranks the value of rank 0. A state
    with such a handler goes back to its last commit whenever a rank is lost, as Horovod's states do. Other handlers
    need no copy: they override the methods of `distrun.elastic.part.Part`.
    """

    def __init__(self, value: Any) -> None:
        """`value` is the attribute of the state."""
        self.value = value

    def set_value(self, value: Any) -> None:
        """Replace the value, since the attribute of the state was set, and keep a copy of it."""
        self.value = value
        self.save()

    def sync(self) -> None:
        """Give all ranks the value of rank 0, in handlers that override it. The others leave that to the state."""

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
        """Whether this handler overrides `sync`, and so sends its value by itself."""
        return type(self).sync is not StateHandler.sync


class ObjectStateHandler(StatefulPart, StateHandler):
    """The handler of an object with `state_dict` and `load_state_dict`, such as a scheduler or a sampler.

    The tensors of its state_dict are broadcast, and the rest is pickled.
    """

    _description: Skeleton | None

    def __init__(self, value: Any) -> None:
        """`value` is the object."""
        super().__init__(value)
        self._received: Sequence[Tensor] | None = None

    def save(self) -> None:
        """Keep a copy of its state_dict."""
        self._saved = copied(self.value.state_dict(), self._saved)

    def describe(self) -> Skeleton:
        """Return the skeleton of its state_dict."""
        self._description = None
        return take_apart(self.value.state_dict())[0]

    def adopt(self, description: Skeleton) -> None:
        """Keep the donor's skeleton until `complete`."""
        self._description, self._received = description, None

    def tensors(self) -> Sequence[Tensor]:
        """Return the tensors of its state_dict or, after `adopt`, new ones if they do not fit the donor's skeleton."""
        skeleton, tensors = take_apart(self.value.state_dict())
        if self._description is None:
            return tensors
        slots = self._description.slots
        self._received = tensors if skeleton.slots == slots else [slot.empty() for slot in slots]
        return self._received

    def complete(self) -> None:
        """Load the donor's state. Where no tensors were broadcast, those of this rank equal the donor's."""
        description, received = self._description, self._received
        self._description = self._received = None
        assert description is not None
        if received is None:
            skeleton, received = take_apart(self.value.state_dict())
            if skeleton.slots != description.slots:
                return
        self._load(description.filled(received))


class ModelStateHandler(ObjectStateHandler):
    """The handler of a module: its parameters and buffers, in place."""

    def restore(self) -> None:
        """Go back to the copy, which `load_state_dict` of a module copies by itself."""
        self._load(self._saved)

    def adopt(self, description: Skeleton) -> None:
        """Check that this rank's module has the parameters and buffers of the donor's.

        Raises:
            UsageError: it has others.
        """
        own = take_apart(self.value.state_dict())[0].form
        for name in {**description.form, **own}:
            here, there = own.get(name), description.form.get(name)
            if _described(here) != _described(there) or (isinstance(here, TensorSlot) and here != there):
                raise UsageError(
                    f"{type(self.value).__name__}.{name} is {_described(here)} on rank {world.rank()}, and "
                    f"{_described(there)} on the rank whose state it is to take: make the same model on all ranks"
                )
        super().adopt(description)

    def complete(self) -> None:
        """Load what is not a tensor (`get_extra_state`), if there is such. The tensors were overwritten in place."""
        assert self._description is not None
        if all(isinstance(entry, TensorSlot) for entry in self._description.form.values()):
            self._description = self._received = None
        else:
            super().complete()


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
    """Return a copy of a state_dict. It takes the memory of `before`, an earlier copy, if the tensors fit."""
    skeleton, tensors = take_apart(state)
    skeleton_before, copies = take_apart(before)
    if skeleton_before.slots != skeleton.slots:
        copies = [torch.empty_like(tensor) for tensor in tensors]
    with torch.no_grad():
        for kept, tensor in zip(copies, tensors, strict=True):
            kept.copy_(tensor)
    return copy.deepcopy(skeleton).filled(copies)


def _described(entry: Any) -> str:
    if isinstance(entry, TensorSlot):
        return str(entry)
    return "missing" if entry is None else "no tensor"
