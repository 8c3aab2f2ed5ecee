"""TorchState: models, optimizers, and what belongs to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from distrun.elastic.donor import Election
from distrun.elastic.objects import ObjectState
from distrun.elastic.part import Part
from distrun.torch.elastic.handlers import StateHandler
from distrun.torch.elastic.optimizers import OptimizerStateHandler
from distrun.torch.elastic.randomness import RandomNumbers
from distrun.torch.elastic.registry import handler_of
from distrun.torch.state.objects import broadcast_object
from distrun.torch.state.tensors import broadcast_tensors


class TorchState(ObjectState):
    """A state of modules, optimizers, schedulers, gradient scalers, samplers and plain objects.

    When ranks come or go, the others take all of it from the rank that is furthest: tensors by broadcasts, of which a
    newcomer's optimizer needs none of its own yet; the rest pickled. Nothing is copied for that by `advance`.

    The statistics of batch normalisation are buffers, and travel with them. For random numbers see
    `distrun.torch.elastic.randomness.RandomNumbers`. An optimizer that a training uses belongs into its state, since
    its steps tell whether a rank was between two steps.
    """

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: Any
    ) -> None:
        """Make a state whose attributes are the arguments.

        Args:
            model: a module.
            optimizer: an optimizer, plain or a `DistributedOptimizer`.
            kwargs: further modules and optimizers; what else has `state_dict` and `load_state_dict`, such as a
                scheduler, a `GradScaler` or a sampler; and objects that can be pickled, such as the number of the step.
        """
        super().__init__(broadcast_object, None, model=model, optimizer=optimizer, **kwargs)
        self._parts["random numbers"] = RandomNumbers()
        self._optimizers = [part for part in self._parts.values() if isinstance(part, OptimizerStateHandler)]
        for handler in self._optimizers:
            handler.others = self._optimizers

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; a part of the state is replaced by its new value."""
        part = self.__dict__.get("_parts", {}).get(name)
        if isinstance(part, StateHandler) and part.value is not value:
            part.set_value(value)
        super().__setattr__(name, value)

    def part_of(self, name: str, value: Any) -> Part | None:
        """Return the handler of an attribute; None for an object to pickle."""
        return handler_of(value)

    def abandon(self) -> None:
        """Drop what is left of a step that failed half-way, and undo what can be undone of it."""
        super().abandon()
        if all(handler.can_undo for handler in self._optimizers):
            for handler in self._optimizers:
                handler.undo()

    def broadcast_tensors(self, tensors: Sequence[Tensor], root_rank: int) -> None:
        """Overwrite the tensors of all parts with those of a rank, in place."""
        broadcast_tensors(tensors, root_rank, "elastic.tensors")

    # With handlers of Horovod's kind ----------------------------------------------------------------------------------

    def _horovods(self) -> list[StateHandler]:
        return [part for part in self._parts.values() if isinstance(part, StateHandler) and part.is_horovods]

    def recover(self, is_aborted: bool) -> None:
        """Go back to the last commit where that has to be: always, with handlers of Horovod's kind."""
        super().recover(is_aborted)
        if is_aborted and self._has_copy and self._horovods():
            self.restore()

    def elect(self) -> None:
        """Agree whose state all take; with handlers of Horovod's kind it is rank 0's."""
        if self._horovods():
            self._election = Election(0, max(0, self._boundaries), sends=True)
        else:
            super().elect()
