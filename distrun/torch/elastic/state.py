"""TorchState: the state of models, optimizers, schedulers and plain objects, and their handlers by type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from distrun.elastic.donor import Election
from distrun.elastic.objects import ObjectState
from distrun.elastic.part import Part, is_stateful
from distrun.torch.elastic.handlers import GradScalerStateHandler, ModelStateHandler, ObjectStateHandler, StateHandler
from distrun.torch.elastic.optimizers import OptimizerStateHandler
from distrun.torch.elastic.randomness import RandomNumbers
from distrun.torch.state.broadcasts import broadcast_tensors
from distrun.torch.state.objects import broadcast_object

Registry = list[tuple[type, Callable[[Any], StateHandler]]]

_registry: Registry = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (torch.amp.grad_scaler.GradScaler, GradScalerStateHandler),
]


def get_handler_registry() -> Registry:
    """Return the pairs of a type and its handler. The first pair that fits an object is used."""
    return _registry


def set_handler_registry(registry: Registry) -> None:
    """Use `registry`, pairs of a type and a handler, for states that are made later."""
    global _registry
    _registry = registry


class TorchState(ObjectState):
    """A state of modules, optimizers, schedulers, gradient scalers, samplers and plain objects.

    When ranks come or go, all take the state of the rank with the most steps. Tensors are broadcast, and the rest is
    pickled. A newcomer's optimizer need not have any state yet. `advance` copies nothing.

    The statistics of batch normalisation are buffers, and so belong to the state. For random numbers see
    `distrun.torch.elastic.randomness.RandomNumbers`. Put every optimizer that trains into the state: its steps tell
    whether a rank was lost in the middle of a step.
    """

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: Any
    ) -> None:
        """Make a state whose attributes are the arguments.

        Args:
            model: a module.
            optimizer: an optimizer, plain or a `DistributedOptimizer`.
            kwargs: more modules and optimizers, other objects with `state_dict` and `load_state_dict`, such as a
                scheduler, a `GradScaler` or a sampler, and objects that can be pickled, such as the number of the step.
        """
        super().__init__(broadcast_object, None, model=model, optimizer=optimizer, **kwargs)
        self._parts["random numbers"] = RandomNumbers()
        self._optimizers = [part for part in self._parts.values() if isinstance(part, OptimizerStateHandler)]
        for handler in self._optimizers:
            handler.others = self._optimizers

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. If it has a handler, that takes the new value."""
        part = self.__dict__.get("_parts", {}).get(name)
        if isinstance(part, StateHandler) and part.value is not value:
            part.set_value(value)
        super().__setattr__(name, value)

    def part_of(self, name: str, value: Any) -> Part | None:
        """Return a new handler of an attribute, or None for an object to pickle."""
        for kind, handler in _registry:
            if isinstance(value, kind):
                return handler(value)
        return ObjectStateHandler(value) if is_stateful(value) else None

    def abandon(self) -> None:
        """Drop the gradients of a step that failed half-way, and undo steps that optimizers have made in it."""
        super().abandon()
        if all(handler.can_undo for handler in self._optimizers):
            for handler in self._optimizers:
                handler.undo()

    def broadcast_tensors(self, tensors: Sequence[Tensor], root_rank: int) -> None:
        """Overwrite the tensors of all parts with the root's, in place."""
        broadcast_tensors(tensors, root_rank, "elastic.tensors")

    # With handlers of Horovod's kind ----------------------------------------------------------------------------------

    def _horovods(self) -> list[StateHandler]:
        return [part for part in self._parts.values() if isinstance(part, StateHandler) and part.is_horovods]

    def recover(self, is_aborted: bool) -> None:
        """Go back to the last commit where that is needed. With handlers of Horovod's kind it always is."""
        super().recover(is_aborted)
        if is_aborted and self._has_copy and self._horovods():
            self.restore()

    def elect(self) -> None:
        """Agree on the donor. With handlers of Horovod's kind it is rank 0."""
        if self._horovods():
            self._election = Election(0, max(0, self._boundaries), sends=True)
        else:
            super().elect()
