"""The handler of an optimizer, which sees its steps, and undoes the one that others have to follow."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from distrun.runtime.collectives.residuals import Residual
from distrun.torch.elastic.handlers import ObjectStateHandler, copied
from distrun.torch.optimizer.distributed import Distributed


class OptimizerStateHandler(ObjectStateHandler):
    """The handler of an optimizer, plain or distributed.

    Where optimizers take turns, as those of a GAN do, a rank may be lost when one of them has made its step and another
    one waits for gradients: then no rank is at a step boundary. The handler finds out whether backward passes follow a
    step before the next boundary, and if so keeps a copy, each time, of what the first step after a boundary changes.
    The optimizer whose step is the last costs no copy. If none is the last, since the script marks boundaries more
    rarely, nothing can be undone, and none does.

    What compression has taken from the gradients, and is to be made up for, is each rank's own: a rank keeps it when
    others come or go, goes back to what it was at the last commit with the rest, and takes nobody else's. What a rank
    that is gone owed is gone with it, and a newcomer owes nothing.
    """

    def __init__(self, value: torch.optim.Optimizer) -> None:
        """`value` is the optimizer."""
        super().__init__(value)
        self.others: Sequence[OptimizerStateHandler] = (self,)
        """All optimizers of the state."""
        self._is_followed = False
        self._before: Any = None
        self._residuals_before: dict[Tensor, Residual] | None = None
        self._residuals: dict[Tensor, Residual] | None = None  # as of the last `save`
        self._watch()

    def _watch(self) -> None:
        self._has_stepped = False
        self._can_undo = False
        self._hooks = [self.value.register_step_pre_hook(self._note_step)]
        first = next((parameter for parameter in self._parameters() if parameter.requires_grad), None)
        if first is not None:
            hook = first.register_post_accumulate_grad_hook(self._note_gradient)  # type: ignore[no-untyped-call]
            self._hooks.append(hook)

    def _parameters(self) -> list[Tensor]:
        groups = self.value.param_groups
        return list(itertools.chain.from_iterable(group["params"] for group in groups))

    def _note_step(self, *_: object) -> None:
        if self._is_followed and not self._has_stepped and not all(other._is_followed for other in self.others):
            self._before = copied([self._parameters(), self.value.state_dict()], self._before)
            self._residuals_before = _residuals(self.value)
            self._can_undo = True
        self._has_stepped = True

    def _note_gradient(self, _: Tensor) -> None:
        for other in self.others:
            if other._has_stepped:
                other._is_followed = True

    def set_value(self, value: torch.optim.Optimizer) -> None:
        """Take another optimizer."""
        for hook in self._hooks:
            hook.remove()
        super().set_value(value)
        self._watch()

    def advance(self) -> None:
        """Note that all steps so far belong to the past."""
        self._has_stepped = self._can_undo = False

    mark = advance

    def is_clean(self) -> bool:
        """Return whether it has made no step since, or none that was not undone."""
        return not self._has_stepped

    @property
    def can_undo(self) -> bool:
        """Whether its steps since the last boundary, if any, can be undone."""
        return self._can_undo or not self._has_stepped

    def undo(self) -> None:
        """Go back to the last boundary."""
        if self._has_stepped:
            parameters, state = self._before
            with torch.no_grad():
                for parameter, kept in zip(self._parameters(), parameters, strict=True):
                    parameter.copy_(kept)
            self._load(copy.deepcopy(state))
            _load_residuals(self.value, self._residuals_before)
            self.advance()

    def save(self) -> None:
        """Keep a copy of its state_dict, and what compression has taken from this rank's gradients."""
        super().save()
        self._residuals = _residuals(self.value)

    def restore(self) -> None:
        """Go back to the copy."""
        super().restore()
        _load_residuals(self.value, self._residuals)

    def abandon(self) -> None:
        """Drop the gradients of the step that failed."""
        self.value.zero_grad()


def _residuals(optimizer: torch.optim.Optimizer) -> dict[Tensor, Residual] | None:
    """Return what is to be made up for of an optimizer's gradients; None for a plain one."""
    reducer = optimizer._reducer if isinstance(optimizer, Distributed) else None
    return None if reducer is None else reducer.residuals()


def _load_residuals(optimizer: torch.optim.Optimizer, residuals: dict[Tensor, Residual] | None) -> None:
    if isinstance(optimizer, Distributed) and optimizer._reducer is not None and residuals is not None:
        optimizer._reducer.load_residuals(residuals)
