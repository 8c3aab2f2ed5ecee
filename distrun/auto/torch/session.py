"""The training that the script does, as far as this process knows it: the part, the optimizers, the model's modes.

All changes in torch share one object, `current`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import nn

from distrun.auto import job
from distrun.auto.comparing import LoopPosition, announce
from distrun.auto.torch.parts import Part
from distrun.host.instances import instances_of

_NO_LOADER = "the data of a training step does not come from a DataLoader that is being iterated"


class TrainingSession:
    """The state of the training."""

    def __init__(self) -> None:
        self.part: Part | None = None
        """This rank's part of the batch that the script works on."""
        self.is_padded = False
        """Whether samples of that part may have been padded to the longest one of the part."""
        self.why_not_shared = _NO_LOADER
        """The reason why there is no part, for a refusal."""
        self.optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.places: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        """The position of each optimizer in the order of creation."""
        self.prepared: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        """The optimizers whose weights are rank 0's, and whose gradients are reduced."""
        self.has_unshared_gradients = False
        """Whether `backward` ran without a part since the last step."""
        self.backwards = 0
        """The number of calls of `backward` since the start."""
        self.backwards_in_batch = 0
        self.grads_in_batch = 0
        """The number of losses of this batch that `torch.autograd.grad` was called for."""
        self.is_loading = False
        """Whether samples are being loaded in this process."""
        self.in_backward = False
        """Whether `backward` is running."""
        self.in_grad = False
        """Whether `torch.autograd.grad` of a loss is running."""
        self.iteration = 0
        """The number of iterations whose batches were divided among the ranks."""
        self.batch = 0
        """The number of batches so far in this iteration. 0 at its end."""
        self.must_be_tried = ""
        """The reason why only a trial can show that a loss of this batch is right. Empty if no trial is needed."""
        self.has_new_loss = False
        """Whether a loss of another kind has appeared in a step that is not tried."""
        self.steps = 0
        self.parts: weakref.WeakKeyDictionary[object, Part] = weakref.WeakKeyDictionary()
        """The latest part of each divided iteration that has not ended, by its iterator."""
        self._made = 0
        self.modes: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        """The modules whose `train` or `eval` the script has called."""

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Note an optimizer that the script has created."""
        self._made += 1
        self.places[optimizer] = self._made
        self.optimizers.add(optimizer)

    def in_order(self, optimizers: Iterable[torch.optim.Optimizer]) -> list[torch.optim.Optimizer]:
        """Return optimizers sorted by creation."""
        return sorted(optimizers, key=self.places.__getitem__)

    def parameters(self) -> Iterator[torch.Tensor]:
        """Yield the parameters of all optimizers."""
        for optimizer in self.optimizers:
            yield from weights_of(optimizer)

    @property
    def is_evaluating(self) -> bool:
        """Whether all trained modules whose mode the script has set are in evaluation mode. False if there are none."""
        trained = {id(parameter) for parameter in self.parameters()}
        modes = [
            module.training
            for module in self.modes
            if any(id(parameter) in trained for parameter in module.parameters())
        ]
        return bool(modes) and not any(modes)

    @property
    def is_first_batch(self) -> bool:
        """Whether the current batch is the first one of its iteration."""
        return self.batch == 1

    def announce(self) -> Callable[[], None]:
        """Tell the other ranks where in the training loop this one is. See `comparing.announce`."""
        return announce(LoopPosition(self.iteration, self.batch, self.backwards_in_batch + self.grads_in_batch))

    def other_parts(self) -> list[Part]:
        """Return the latest parts of all iterations except the one that the latest batch was taken from."""
        return [part for part in self.parts.values() if part is not self.part]

    def lose_part(self, why: str = _NO_LOADER) -> None:
        """Note that the script no longer works on this rank's part of a batch, and why."""
        self.part = None
        self.why_not_shared = why


def weights_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the parameters of an optimizer."""
    return [each for group in optimizer.param_groups for each in group["params"]]


def modules_of(parameters: set[int]) -> list[nn.Module]:
    """Return the outermost modules that hold any of `parameters`, which are given by their ids."""
    modules = [
        each for each in instances_of(nn.Module) if any(id(parameter) in parameters for parameter in each.parameters())
    ]
    inner = {id(child) for module in modules for child in module.modules() if child is not module}
    return [module for module in modules if id(module) not in inner]


current = TrainingSession()


def is_shared() -> bool:
    """Whether there are other ranks, Keras is not at work, and this process is not a DataLoader's worker."""
    return job.current.is_shared and not job.current.is_in_keras and torch.utils.data.get_worker_info() is None
