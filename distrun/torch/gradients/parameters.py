"""The parameters of an optimizer whose gradients are reduced: their names, and a hook on each."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import is_
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from distrun.torch.gradients.backward import current_task
from distrun.torch.gradients.bucket import Bucket


class Listener(Protocol):
    """An object that is called for each gradient."""

    def arrive(self, parameter: int, /) -> None:
        """Note that the gradient of the parameter with this id is complete."""
        ...


class Counted(dict[int, tuple[Bucket, set[int]]]):
    """The bucket of each parameter whose gradients may be counted by its hook alone, with a set of only its place, by
    its id. None for other parameters."""

    def __missing__(self, parameter: int) -> None:
        return None


class TrackedParameters:
    """The parameters of an optimizer that need gradients, each with a hook. `follow` updates them."""

    def __init__(self, optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str], listener: Listener) -> None:
        """Track nothing yet: see `follow`.

        Args:
            optimizer: the optimizer with the parameters. It is not kept alive.
            names: the parameters' names in error messages. A parameter without one is called by its place.
            listener: called for every gradient. It is not kept alive either, for it lives as long as its optimizer.
        """
        self.tensors: list[Tensor] = []
        self.names: list[str] = []
        self.places: dict[int, int] = {}
        """Each tensor's index in `tensors`, by its id."""
        self.counted = Counted()
        self._optimizer = weakref.ref(optimizer)
        self._listener = weakref.ref(listener)
        self._given_names = names
        self._listed: list[Tensor] = []  # all parameters of the optimizer
        self._needing: list[bool] = []  # which of them need gradients
        self._hooks: dict[int, RemovableHandle] = {}  # by id
        weakref.finalize(self, _remove, self._hooks)

    def follow(self) -> bool:
        """Update the parameters for those added, unfrozen or removed since the last call; return whether any were."""
        optimizer = self._optimizer()
        if optimizer is None:
            return False
        listed = [parameter for options in optimizer.param_groups for parameter in options["params"]]
        needing = [parameter.requires_grad for parameter in listed]
        if needing == self._needing and len(listed) == len(self._listed) and all(map(is_, listed, self._listed)):
            return False
        self._listed, self._needing = listed, needing
        self.tensors = [parameter for parameter in listed if parameter.requires_grad]
        by_place = {parameter: name for name, parameter in numbered(optimizer)}
        self.names = [self._given_names.get(parameter, by_place[parameter]) for parameter in self.tensors]
        self.places = {id(parameter): place for place, parameter in enumerate(self.tensors)}
        self._register_hooks()
        return True

    def count_in(self, buckets: Iterable[Bucket]) -> None:
        """Let hooks count down in those of `buckets` that allow it, and in no others."""
        self.counted.clear()
        for bucket in buckets:
            self.counted.update((id(self.tensors[place]), (bucket, {place})) for place in bucket.counted)

    def _register_hooks(self) -> None:
        """Give each parameter one hook. A parameter that has one keeps it, since this may run within that hook."""
        for gone in self._hooks.keys() - self.places.keys():
            self._hooks.pop(gone).remove()
        for parameter in self.tensors:
            key = id(parameter)
            if key not in self._hooks:
                hook = _hook(self._listener, key, self.counted)
                self._hooks[key] = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]


def numbered(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    """Yield the optimizer's parameters with names made of their group and index."""
    for group, options in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(options["params"]):
            yield f"parameter {group}.{index}", parameter


def _hook(listener: weakref.ref[Listener], parameter: int, counted: Counted) -> Callable[[Tensor], None]:
    """Return the hook of a parameter, which counts down in its bucket, and calls the listener for all else: the first
    and the last gradient of a bucket, another stream, and all that is out of the ordinary."""

    def arrived(_: Tensor) -> None:
        found = counted[parameter]  # by operators, since this runs for each gradient, and method calls take longer
        if found is not None:
            bucket, own = found
            # Read first: when a pass fails while a thread is in this hook, `counts_in` changes before the set does.
            waiting = bucket.waiting_for
            if bucket.counts_in == (current_task(), bucket.current_stream()) and waiting > own:
                waiting -= own
                return
        alive = listener()
        if alive is not None:
            alive.arrive(parameter)

    return arrived


def _remove(hooks: dict[int, RemovableHandle]) -> None:
    for hook in hooks.values():
        hook.remove()
    hooks.clear()
