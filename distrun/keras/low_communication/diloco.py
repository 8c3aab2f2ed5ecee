"""DiLoCo and local SGD: the ranks of a host train together, and hosts average their weights every few steps.

See `distrun.methods.diloco` for the algorithm and its sources. In `fit` a callback takes the outer steps. It acts at
the beginning of a batch for the batch before, because a callback for the end of a batch would make Keras wait for the
step's result.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from distrun.keras.gradients import OUTER
from distrun.keras.library import Library, attach, mixed
from distrun.keras.optimizer import DistributedOptimizer, library_to_wrap
from distrun.methods.diloco.fragments import Fragment
from distrun.methods.diloco.merging import merge
from distrun.methods.diloco.optimizer import OuterOptimizer
from distrun.methods.diloco.parameters import HostArrays
from distrun.methods.diloco.settings import OuterSettings
from distrun.runtime.process_sets.process_set import ProcessSet
from distrun.runtime.process_sets.process_sets import host_set

__all__ = ["DiLoCo", "LocalSGD"]


def DiLoCo(  # noqa: N802 - the name of the algorithm
    optimizer: Any,
    every: int = 50,
    outer_lr: float = 0.7,
    momentum: float = 0.9,
    wire: str | None = "int4",
    overlap: bool = True,
    fragments: int = 4,
) -> Any:
    """Make each host train by itself with `optimizer`, and exchange weights with the others every `every` steps, and
    return it.

    In `fit` the ranks of a host reduce their gradients at each step, as with a `DistributedOptimizer` of their process
    set, and after every `every` steps each weight takes an outer step. At the end of each epoch, and so of `fit`, all
    ranks get the average of their weights. Each host keeps its own weights that are not trained, such as the statistics
    of batch normalisation. A step is a batch or, with `steps_per_execution`, an execution. All ranks make the same
    number.

    Use it with `fit`, with `BroadcastGlobalVariablesCallback(0)` or the same initial weights on all ranks. In an
    elastic job the remaining ranks average their weights when `fit` is entered again, and new ranks take over the outer
    optimizer's state. Hosts that were behind the furthest take its weights.

    Args:
        optimizer: the inner optimizer, of Keras 3 or Keras 2. It stays the same object.
        every, outer_lr, momentum: how often weights take an outer step, its rate, and its Nesterov momentum.
        wire, overlap, fragments: how weights travel between hosts, and whether training continues meanwhile. For all of
            them see `distrun.torch.DiLoCo`.

    Raises:
        UsageError: an argument is impossible, or the optimizer is wrapped already.
    """
    settings = OuterSettings(every, outer_lr, momentum, wire or "", bool(overlap), fragments)
    kind = library_to_wrap(optimizer, "DiLoCo")  # before the ranks do something together
    hosts = host_set()
    wrapped = DistributedOptimizer(optimizer, process_set=hosts)
    attach(wrapped, OUTER, OuterSteps(settings, hosts, kind))
    return wrapped


def LocalSGD(optimizer: Any, every: int = 50, wire: str | None = None) -> Any:  # noqa: N802 - see above
    """Make each host train by itself with `optimizer`, and average the hosts' weights after every `every` steps.

    This is `DiLoCo` with outer_lr=1, without momentum, fragments and overlap. See there for the arguments.
    """
    return DiLoCo(optimizer, every, 1.0, 0.0, wire, overlap=False, fragments=1)


class OuterSteps:
    """The outer steps of one optimizer."""

    def __init__(self, settings: OuterSettings, hosts: ProcessSet, library: Library) -> None:
        self.library = library
        self._settings = settings
        self._hosts = hosts
        self._outer: OuterOptimizer | None = None  # when the model has its variables

    def callback(self) -> Any:
        """Return a callback for one `fit`."""
        return mixed(_Callback, self.library.PACKAGE.callbacks.Callback)(self)

    def begin_step(self, model: Any) -> None:
        """Begin a step."""
        self._follow(model)
        if self._outer is not None:
            self._outer.begin_step()

    def end_step(self) -> None:
        """End a step."""
        if self._outer is not None:
            self._outer.end_step()

    def merge(self) -> None:
        """Replace the weights of all ranks by their average."""
        if self._outer is not None:
            merge(self._outer)

    def meet(self, model: Any) -> None:
        """Average the weights before the first step of a `fit`, since some ranks may have made steps that others have
        not."""
        self._follow(model)
        self.merge()

    def _follow(self, model: Any) -> None:
        if self._outer is None and self.library.is_built(model):
            self._outer = OuterOptimizer(self._settings, _KerasParameters(model, self.library), self._hosts)


class _Callback:
    """Takes the outer steps: a mixin for the callbacks of both versions of Keras."""

    model: Any

    _supports_tf_logs = True  # in Keras 2: so that Keras does not wait for the logs of each step

    def __init__(self, steps: OuterSteps) -> None:
        super().__init__()
        self._steps = steps
        self._is_in_step = False

    def on_train_begin(self, logs: Any = None) -> None:
        self._steps.meet(self.model)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._end_step()
        self._steps.begin_step(self.model)
        self._is_in_step = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._end_step()
        self._steps.merge()

    def _end_step(self) -> None:
        if self._is_in_step:
            self._is_in_step = False
            self._steps.end_step()


class _KerasParameters(HostArrays):
    """The trainable variables of a model. See `distrun.methods.diloco.parameters.Parameters`."""

    def __init__(self, model: Any, library: Library) -> None:
        self._model = model
        self._library = library
        self._variables = list(model.trainable_variables)
        self.sizes = [math.prod(variable.shape) for variable in self._variables]
        if any(getattr(variable.dtype, "name", variable.dtype) == "float64" for variable in self._variables):
            self.dtype = np.dtype(np.float64)

    def read(self, fragment: Fragment, out: Any) -> None:
        self._reattach()
        for variable, part in zip(self._of(fragment), fragment.parts(out), strict=True):
            part[:] = self._library.array_of(variable).reshape(-1)

    def write(self, fragment: Fragment, flat: Any) -> None:
        self._reattach()
        arrays = [
            part.reshape(variable.shape).copy()  # JAX may keep the memory that it is given
            for variable, part in zip(self._of(fragment), fragment.parts(flat), strict=True)
        ]
        self._library.assign(self._of(fragment), arrays)

    def add(self, fragment: Fragment, flat: Any) -> None:
        self._reattach()
        arrays = [
            self._library.array_of(variable) + part.reshape(variable.shape)
            for variable, part in zip(self._of(fragment), fragment.parts(flat), strict=True)
        ]
        self._library.assign(self._of(fragment), arrays)

    def _of(self, fragment: Fragment) -> list[Any]:
        return self._variables[fragment.places.start : fragment.places.stop]

    def _reattach(self) -> None:
        """Write the values back into the model on JAX, where `fit` keeps them outside of it, and make `fit` take them
        again."""
        if not getattr(self._model, "_jax_state_synced", True):
            self._model.jax_state_sync()
