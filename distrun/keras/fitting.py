"""Hooks into `fit` for models with a `DistributedOptimizer`.

Ranks that are not in the same step of `fit` would wait for one another for ever, or silently pair different steps. So
all ranks compare their models when `fit` begins, and wait in a barrier at the end of each epoch and of `fit`. The
barrier has the same name as the gradients' operation. If a rank reaches it while others still have steps to make, the
two requests disagree, and all ranks get an error at once instead of waiting.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from distrun.data.shards import Shard
from distrun.errors import CollectiveError, DistrunError, MismatchError, UsageError
from distrun.keras import gradients, library
from distrun.keras.gradients import Distributed, outer_steps_of
from distrun.keras.library import Library
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import Request
from distrun.runtime.process_sets.process_set import ProcessSet
from distrun.runtime.world import world
from distrun.tracing import layout, recording

_has_warned = False
_departure: Handle | None = None  # the request that reports a failed `fit` to the other ranks, until they have seen it


def is_distributed(model: Any) -> bool:
    """Return whether other ranks take part in the model's training."""
    optimizer = getattr(model, "optimizer", None)
    return isinstance(optimizer, Distributed) and not optimizer.distrun_settings.is_alone()


def _prepare(model: Any) -> tuple[type, bool] | None:
    """Return what the train function of `model` depends on, before it is made, or None if it is not distributed."""
    optimizer = getattr(model, "optimizer", None)
    if not isinstance(optimizer, Distributed):
        return None
    if optimizer.distrun_library.BACKEND == "tensorflow" and is_distributed(model) and model.jit_compile:
        _warn_of_xla()
        model.jit_compile = False
    return type(optimizer), optimizer.distrun_settings.process_set.included()


def _warn_of_xla() -> None:
    global _has_warned
    if not _has_warned and world.rank() == 0:
        warnings.warn(
            "XLA cannot compile a TensorFlow function in which ranks communicate, so distrun turned jit_compile off "
            "for this model: pass jit_compile=False to compile(), or use the JAX backend, where it can",
            stacklevel=2,
        )
    _has_warned = True


def _as_it_is(kind: Library, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `fit`, without shuffling if `x` is a `distrun.data.shard`: all ranks know its order.

    Raises:
        UsageError: `steps_per_epoch` is not the shard's number of batches. Keras reads ahead, so the shard could not
            tell where an epoch ends.
    """
    batches: Any = arguments.get("x")
    if not (isinstance(batches, Shard) and isinstance(batches, kind.PACKAGE.utils.Sequence)):
        return arguments
    steps, length = arguments.get("steps_per_epoch"), len(arguments["x"])
    if steps not in (None, length):
        raise UsageError(
            f"steps_per_epoch={steps} of a shard that has {length} batches in an epoch: leave steps_per_epoch out, or "
            "shard a tf.data.Dataset that repeats"
        )
    return {**arguments, "shuffle": False}


def _train(kind: Library, fit: Callable[..., Any], model: Any, arguments: dict[str, Any]) -> Any:
    arguments = _as_it_is(kind, arguments)
    callbacks = library.callbacks_of(arguments.get("callbacks"))
    courses = [each.distrun_course for each in callbacks if hasattr(each, "distrun_course")]
    if courses:  # of an ElasticCallback, which resumes at the saved position
        fit = partial(courses[0].fit, kind, fit)
    else:
        for each in callbacks:
            if hasattr(each, "distrun_check"):
                each.distrun_check(arguments.get("x"))
    outer_steps = outer_steps_of(getattr(model, "optimizer", None))
    if outer_steps is not None:
        arguments = library.first_callback(kind.PACKAGE, arguments, outer_steps.callback(), model)
    if not is_distributed(model):
        return fit(model, **arguments)
    _catch_up()
    progress = library.mixed(_Progress, kind.PACKAGE.callbacks.Callback)(model.optimizer)
    try:
        return fit(model, **library.first_callback(kind.PACKAGE, arguments, progress, model))
    except Exception as error:
        if not _is_ours(error):
            progress.leave(error)
        clash = _CLASH.search(str(error))
        if clash is None:
            raise
        raise MismatchError(progress.explain(clash[0])) from error


def _catch_up() -> None:
    """Wait until all ranks have seen the failure of an earlier `fit` here: the operations of the next `fit` have the
    same names."""
    global _departure
    handle, _departure = _departure, None
    if handle is not None and handle.engine is world.engine():
        with contextlib.suppress(DistrunError):
            handle.wait()


def _is_ours(error: Exception) -> bool:
    """Return whether the error comes from a collective, so that other ranks have it too, or from a change of the job's
    ranks. TensorFlow and JAX wrap such errors in exceptions of their own, so their text is searched."""
    if isinstance(error, CollectiveError) or _OURS.search(str(error)) is not None:
        return True
    # By its name, so that elastic training is not imported where it is not used.
    return type(error).__name__ == "HostsUpdatedInterrupt"


_OURS = re.compile(r"\b(Mismatch|Stall|JobAborted|Call)Error: ")
_CLASH = re.compile(r"\w+ '[^']*keras\.(fit|gradients)[^\n]*: the ranks disagree about (kind|shapes)[^\n]*")
_SIDE = re.compile(r"(ranks? [\d, -]+) asked for ([^;]*)")


class _Progress:
    """Tracks this rank's place in `fit`, and compares it with the other ranks by barriers: a mixin for the callbacks of
    both versions of Keras."""

    model: Any

    _supports_tf_logs = True  # in Keras 2: so that Keras does not wait for the logs of each step

    def __init__(self, optimizer: Any) -> None:
        super().__init__()
        self._optimizer = optimizer
        self._library: Library = optimizer.distrun_library
        self._ranks: ProcessSet = optimizer.distrun_settings.process_set
        self._epoch = 0
        self._steps = 0
        self._place = "the beginning of fit"
        self._has_begun = False
        self._has_left = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Compare the models of all ranks."""
        gradients.begin(self.model)
        self._has_begun = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Start counting steps."""
        self._epoch, self._steps = epoch + 1, 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Count a step. (A callback for the end of a batch would keep Keras from working ahead.)"""
        if batch:
            recording.step_done()
        recording.enter(layout.FORWARD)
        self._steps = batch + 1
        self._place = f"step {self._steps} of epoch {self._epoch}"

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Wait for the other ranks."""
        recording.step_done()
        recording.enter(layout.OTHER)
        self._place = f"the end of epoch {self._epoch}, after {self._steps} steps"
        self._wait_for_all()

    def on_train_end(self, logs: Any = None) -> None:
        """Wait for the other ranks, which must end `fit` here as well."""
        self._place = f"the end of fit, after epoch {self._epoch}"
        self._wait_for_all()
        self._has_left = True

    def _wait_for_all(self) -> None:
        self._library.finish(self.model)
        handle = self._barrier()
        if handle is not None:
            handle.engine.run(handle).wait()

    def leave(self, error: Exception) -> None:
        """Report that `fit` failed here with `error`, so that ranks that wait for this one's gradients get an error
        now, even if this rank's script continues."""
        self._library.settle()
        words = f"{type(error).__name__}: {error}".splitlines()[0][:200].replace(";", ",")
        # The text is sent only with a request that the ranks have not negotiated before, and these shapes are new.
        handle = self._barrier(((self._epoch, self._steps),), f"{self._place}, where fit failed with {words}")
        if handle is None or self._has_left:
            return
        global _departure
        with contextlib.suppress(DistrunError):  # the job is over
            _departure = handle.engine.submit(handle)

    def _barrier(self, shapes: Any = (), site: str = "the end of an epoch of fit") -> Handle | None:
        name = gradients.name_of_step(self._optimizer) if self._has_begun else gradients.BEGINNING
        if name is None:
            return None
        set_id = self._ranks.number
        handle = Handle(world.engine(), Request("barrier", name, "uint8", shapes, process_set=set_id), ())
        handle.site = site
        return handle

    def explain(self, clash: str) -> str:
        """Return the message for `clash`, the error of a barrier that met a gradient operation of the same name."""
        asked = [(who, what.partition(" at ")[2] or "another place") for who, what in _SIDE.findall(clash)]
        sides = "; ".join(f"{who} is at {where}" for who, where in asked)
        remedy = (
            "look there for the cause"
            if "where fit failed" in sides
            else "give all ranks the same callbacks, steps and epochs, and put MetricAverageCallback before callbacks "
            "that end the training, such as EarlyStopping"
        )
        here = f"this is rank {world.rank()}, at {self._place}"
        return f"the ranks are not at the same place of fit: {sides} ({here}): {remedy}"


def take_part(kind: Library) -> None:
    """Install these hooks in `fit` of a version of Keras."""
    library.around_training(kind.PACKAGE, _prepare, partial(_train, kind))
