"""A `fit` that continues another one in the middle of an epoch, with other ranks.

It calls `fit` of Keras twice, for the rest of the epoch and for the other epochs, with one list of callbacks. To the
callbacks they are a single `fit` that began with the first epoch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from distrun.keras.elastic import stages
from distrun.keras.library import Library, attach, callbacks_of
from distrun.keras.values.logs import plain
from distrun.runtime.operations.numbering import Numbering

_fits = Numbering()
_KINDS = ("EarlyStopping", "ReduceLROnPlateau", "ModelCheckpoint")
_WEIGHTS = "best_weights"  # of EarlyStopping(restore_best_weights=True)


class Course:
    """The progress of the `fit`s of a state, which is kept in `state.epoch`, `state.batch` and `state.course`.

    `state.course` is a dictionary that is replaced, never changed. Each of its entries may be missing:

        fit         the number of the present `fit`, or of the last one
        steps       the batches of an epoch of it, with the ranks of that time
        data        the position in the data of `distrun.data.shard`
        logs        the logs for `on_epoch_end`, of an epoch whose batches are all done
        callbacks   the state of the callbacks at the end of the last epoch
        history     the epochs that are done, with their logs
        is_stopped  whether a callback has ended the training
    """

    def __init__(self, state: Any) -> None:
        self._state = state
        self._reached = 0
        self._position: Any = None
        self._place: Any = None  # the state of the position after the last batch that was trained on

    def fit(self, kind: Library, fit: Callable[..., Any], model: Any, **arguments: Any) -> Any:
        """Do what is left of `fit(model, **arguments)`."""
        state, epochs = self._state, arguments.get("epochs", 1)
        if not self._find_place(_fits.next(), arguments.get("initial_epoch", 0)):
            return fit(model, **{**arguments, "initial_epoch": epochs, "epochs": epochs})
        epoch = state.epoch
        if state.course.get("is_stopped"):
            epochs = epoch
        total, left = self._find_data(kind, arguments)
        verbose = arguments.get("verbose", "auto")
        callbacks = stages.callback_list(
            *(kind.PACKAGE, self, callbacks_of(arguments.get("callbacks")), total),
            add_history=True,
            add_progbar=verbose != 0,
            model=model,
            verbose=1 if verbose == "auto" else verbose,
            epochs=epochs,
            steps=total,
        )
        arguments = {**arguments, "callbacks": callbacks}
        model.stop_training = False
        if epoch < epochs and state.course.get("logs") is not None:
            callbacks.on_train_begin()
            callbacks.on_epoch_begin(epoch)
            callbacks.on_epoch_end(epoch, dict(state.course["logs"]))
            epoch += 1
        elif epoch < epochs and state.batch:
            callbacks.distrun_offset = state.batch
            rest = {} if left is None else {"steps_per_epoch": left}
            with _unfinished(model.optimizer):
                fit(model, **{**arguments, **rest, "initial_epoch": epoch, "epochs": epoch + 1})
            callbacks.distrun_offset = 0
            epoch += 1
        if not model.stop_training and not (callbacks.distrun_has_begun and epoch >= epochs):
            fit(model, **{**arguments, "initial_epoch": epoch, "epochs": epochs})
        callbacks.distrun_end()
        return model.history

    # Where it is ------------------------------------------------------------------------------------------------------

    def _find_place(self, number: int, initial_epoch: int) -> bool:
        """Return whether the `fit` with this number is not over yet, and set the epoch and batch to start from."""
        state = self._state
        known = state.course.get("fit")
        if known is None:  # the first, which may begin where a checkpoint was
            state.epoch = max(initial_epoch, state.epoch)
        elif known > number:
            return False
        elif known < number:
            state.epoch, state.batch = initial_epoch, 0
            state.course = {}
        state.course = {**state.course, "fit": number}
        return True

    def _find_data(self, kind: Library, arguments: dict[str, Any]) -> tuple[int | None, int | None]:
        """Return the number of batches in a whole epoch and, for data without a position, in the rest of this one.

        None: it is not known. Sets `state.batch` to the batches of this epoch that are done, with the present ranks.
        """
        state, course = self._state, self._state.course
        position = getattr(arguments.get("x"), "position", None)
        self._position = None
        if position is not None and hasattr(position, "load_state_dict"):
            position.per_step = 0  # `reach` counts the batches, not `state.advance`
            self._position = position
            if "data" in course and not any(
                getattr(value, "position", value) is position for value in vars(state).values()
            ):
                position.load_state_dict(course["data"])
            if not state.batch and position.next_epoch != state.epoch:
                position.set_epoch(state.epoch)
            steps = getattr(position.plan, "steps", None)
            total = None if steps is None else replace(position.plan, start=0).steps
            if total is not None and state.batch and course.get("logs") is None:
                state.batch = total - steps
            self._reached = state.batch
            self._place = position.state_dict()
            state.course = {**state.course, "steps": total}
            return total, None
        total = steps_of(kind, arguments)
        if state.batch and course.get("logs") is None:
            then = course.get("steps")
            state.batch = 0 if total is None or not then else min(total - 1, round(state.batch * total / then))
        self._reached = state.batch
        state.course = {**state.course, "steps": total}
        return total, None if total is None else total - state.batch

    # What callbacks say -----------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Move the data back to its position: Keras takes a batch before training on ranks with a new model."""
        if self._position is not None and self._position.state_dict() != self._place:
            self._position.load_state_dict(self._place)

    def reach(self, batch: int) -> None:
        """Note that `batch` batches of the epoch are done."""
        if batch > self._reached:
            state = self._state
            steps, self._reached = batch - self._reached, batch
            state.batch = batch
            if self._position is not None:
                if self._position.epoch == state.epoch:  # else Keras has moved on to the next one already
                    self._position.advance(steps)
                self._place = self._position.state_dict()
                state.course = {**state.course, "data": self._place}
            state.advance()

    def end_batches(self, batches: int, logs: dict[str, Any]) -> None:
        """Note that all `batches` of the epoch are done, and keep the `logs` for its end."""
        self._state.course = {**self._state.course, "logs": plain(logs)}
        self.reach(batches)

    def end_epoch(self, epoch: int, logs: dict[str, Any], callbacks: Any, is_stopped: bool) -> None:
        """Note that an epoch is done, and that all callbacks have handled its end."""
        state = self._state
        done = [*state.course.get("history", ()), (epoch, plain(logs))]
        state.epoch, state.batch, self._reached = epoch + 1, 0, 0
        state.course = {
            **state.course,
            "logs": None,
            "callbacks": _states_of(callbacks),
            "history": done,
            "is_stopped": is_stopped,
        }

    def restore(self, callbacks: Any) -> None:
        """Load the state of callbacks whose training has just begun."""
        course = self._state.course
        _restore(callbacks, course.get("callbacks", {}), course.get("history", ()))


def steps_of(kind: Library, arguments: dict[str, Any]) -> int | None:
    """Return the number of batches in an epoch of `fit` with these arguments, or None if it is not known."""
    if arguments.get("steps_per_epoch"):
        return int(arguments["steps_per_epoch"])
    data: Any = arguments.get("x")
    if callable(getattr(data, "cardinality", None)):
        known = int(data.cardinality())
        return known if known > 0 else None
    arrays: Any = data
    while isinstance(arrays, (list, tuple, dict)) and arrays:
        arrays = next(iter(arrays.values())) if isinstance(arrays, dict) else arrays[0]
    shape = getattr(arrays, "shape", None)
    if shape is not None:
        rows = int(shape[0] * (1 - (arguments.get("validation_split") or 0.0)))
        return -(-rows // (arguments.get("batch_size") or 32))
    return len(data) or None if hasattr(data, "__len__") else None


def _states_of(callbacks: Any) -> dict[int, dict[str, Any]]:
    """Return the numbers that the callbacks of a CallbackList count and compare with, by their places in it."""
    return {
        place: {name: value for name, value in vars(callback).items() if _is_learnt(name, value)}
        for place, callback in enumerate(callbacks.callbacks)
        if _is_known(callback)
    }


def _restore(callbacks: Any, states: dict[int, dict[str, Any]], history: Iterable[tuple[int, dict[str, Any]]]) -> None:
    """Load `states` from `_states_of` into the callbacks of a CallbackList, and `history` into its History."""
    for place, callback in enumerate(callbacks.callbacks):
        if place in states and _is_known(callback):
            vars(callback).update(states[place])
    for epoch, logs in history:
        callbacks._history.epoch.append(epoch)
        for name, value in logs.items():
            callbacks._history.history.setdefault(name, []).append(value)


def _is_known(callback: Any) -> bool:
    return any(kind.__name__ in _KINDS for kind in type(callback).__mro__)


def _is_learnt(name: str, value: Any) -> bool:
    return name == _WEIGHTS or value is None or isinstance(value, (bool, int, float, np.number))


@contextlib.contextmanager
def _unfinished(optimizer: Any) -> Iterator[None]:
    """Keep an optimizer from changing the weights at the end of `fit`, such as by averaging them."""
    attach(optimizer, "finalize_variable_values", lambda *_: None)
    try:
        yield
    finally:
        object.__delattr__(optimizer, "finalize_variable_values")
