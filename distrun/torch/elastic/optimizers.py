"""The handler of an optimizer. It notices the optimizer's steps, and can undo a step that was one of several."""

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

    Where optimizers take turns, as in a GAN, a rank may be lost when one of them has made its step and another has not.
    Then no rank is at a step boundary. The handler finds out whether backward passes follow a step before the next
    boundary. If so, it keeps a copy of what the first step after each boundary changes. The optimizer with the last
    step before a boundary needs no copy. If no optimizer is always the last one, because the script marks boundaries
    more rarely, no handler copies, and nothing can be undone.

    The residuals of compressed gradients belong to each rank. A rank keeps its own when others come or go, restores
    them with the rest of its last commit, and takes none of other ranks. Those of a rank that is gone are lost, and a
    newcomer has none.
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
        """Note that all steps so far were made before a boundary."""
        self._has_stepped = self._can_undo = False

    mark = advance

    def is_clean(self) -> bool:
        """Return whether it has made no step since the last boundary, or has undone it."""
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
        """Keep a copy of its state_dict, and the residuals of this rank's gradients."""
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
    """Return the residuals of an optimizer's gradients, or None for a plain optimizer."""
    reducer = optimizer._reducer if isinstance(optimizer, Distributed) else None
    return None if reducer is None else reducer.residuals()


def _load_residuals(optimizer: torch.optim.Optimizer, residuals: dict[Tensor, Residual] | None) -> None:
    if isinstance(optimizer, Distributed) and optimizer._reducer is not None and residuals is not None:
        optimizer._reducer.load_residuals(residuals)
