"""The interface through which `distrun.keras` uses both versions of Keras: Keras 3, and Keras 2, today's tf_keras.

The modules `keras3` and `keras2` have the members of `Library`, and everything that depends on the internals of one
version.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from distrun.errors import UsageError


class Library(Protocol):
    """The members of `keras3` and `keras2`."""

    PACKAGE: Any
    """The package itself."""
    BACKEND: str
    """The backend of Keras: tensorflow, jax or torch."""
    OPTIMIZERS: tuple[type, ...]
    """The base classes of optimizers: each optimizer is an instance of one of them."""

    # Optimizers

    def mixin_of(self, plain: type, /) -> type:
        """Return the subclass of `gradients.Distributed` to be mixed into the optimizer class `plain`."""
        ...

    def save_as(self, kind: type, plain: type, /) -> None:
        """Save instances of `kind` under the name of `plain`, its public name if possible."""
        ...

    def rename(self, optimizer: Any, name: str, /) -> None:
        """Give an optimizer another name."""
        ...

    def accumulate(self, optimizer: Any, passes: int, is_average: bool, /) -> float:
        """Make the optimizer update its variables once in `passes` passes, by the sum or the average of their
        gradients, or refuse to. Return the factor for its gradients.
        """
        ...

    def build(self, optimizer: Any, variables: Sequence[Any], /) -> None:
        """Make the optimizer create its state for the model's `variables`, unless it has done so."""
        ...

    def slots(self, optimizer: Any, variables: Sequence[Any], /) -> list[Any]:
        """Return the variables of an optimizer that belong to these variables of the model."""
        ...

    def velocities(self, optimizer: Any, /) -> list[Any]:
        """Return the momentum variables that contain the learning rate, and so are rescaled when it changes."""
        ...

    def iterations(self, optimizer: Any, /) -> Any:
        """Return the variable that counts an optimizer's steps."""
        ...

    def rates(self, optimizer: Any, /) -> list[Any]:
        """Return an optimizer's hyperparameters that are not among its variables, such as the learning rate."""
        ...

    def drop_passes(self, optimizer: Any, /) -> None:
        """Forget the gradients that distrun has added up for an update that has not come. The sums of Keras itself are
        variables of the optimizer, which all ranks take over."""
        ...

    def scaling_optimizers(self) -> list[Any]:
        """Return the classes of the optimizers that scale the loss and have another one inside."""
        ...

    # Values

    def array_of(self, value: Any, /) -> Any:
        """Return a numpy array of what a number, an array, a tensor or a variable of the backend holds."""
        ...

    def assign(self, variables: Sequence[Any], arrays: Sequence[Any], /) -> None:
        """Overwrite variables."""
        ...

    def scale(self, variables: Sequence[Any], factor: float, /) -> None:
        """Multiply variables by a number."""
        ...

    def load_model(self, filepath: Any, custom_objects: dict[str, Any], legacy_optimizers: bool, /) -> Any:
        """Load a model with `keras.models.load_model`."""
        ...

    # Training

    def is_built(self, model: Any, /) -> bool:
        """Return whether the model has, when training begins, all the variables that it will have (layers may be
        unused)."""
        ...

    def finish(self, model: Any, /) -> None:
        """Wait for the steps that the backend still works on."""
        ...

    def settle(self) -> None:
        """Wait for the steps that the backend still works on after `fit` has failed, and ignore their errors."""
        ...


# Optimizers -----------------------------------------------------------------------------------------------------------


def switch_class(optimizer: Any, kind: type) -> None:
    """Make an optimizer an instance of `kind`, a subclass of its class, bypassing Keras's tracking of attributes."""
    object.__setattr__(optimizer, "__class__", kind)


def attach(optimizer: Any, name: str, value: Any) -> None:
    """Set an attribute that is not part of the optimizer's state."""
    object.__setattr__(optimizer, name, value)


def state_of(optimizer: Any) -> list[Any]:
    """Return an optimizer's variables: `variables` is a method of some optimizers and a property of others."""
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


def call_after(owner: Any, method: str, hook: Callable[[Any], None]) -> None:
    """Change the class `owner` so that `hook` is called with the object after each call of `method`."""
    plain = getattr(owner, method)

    @functools.wraps(plain)
    def both(self: Any, *args: Any, **options: Any) -> Any:
        result = plain(self, *args, **options)
        hook(self)
        return result

    setattr(owner, method, both)


# Training -------------------------------------------------------------------------------------------------------------


@functools.cache
def mixed(mixin: type, base: type) -> Any:
    """Return a subclass of both: a mixin for callbacks of both versions of Keras, and a base class of one of them."""
    return types.new_class(mixin.__name__.strip("_"), (mixin, base))


def callbacks_of(given: Any) -> list[Any]:
    """Return the callbacks in the argument `callbacks` of `fit`: a CallbackList, one callback, several, or None."""
    if hasattr(given, "callbacks"):
        return list(given.callbacks)
    return [given] if hasattr(given, "on_train_begin") else list(given or [])


def trainer_of(keras: Any) -> Any:
    """Return the base class of `keras.Model` that defines `fit`; refuse a Keras with other internals."""
    for owner in keras.Model.__mro__:
        if "make_train_function" in vars(owner) and "fit" in vars(owner):
            return owner
    raise misses(keras, "Trainer.make_train_function")


def misses(keras: Any, what: str) -> UsageError:
    """Return the error for a Keras whose internals have no `what`."""
    return UsageError(
        f"{keras.__name__} {keras.__version__} has no {what}, which distrun.keras builds on: install Keras 3.5 to "
        "3.15, tf_keras 2.16 to 2.21, or a newer distrun"
    )


def around_training(
    keras: Any, prepare: Callable[[Any], object | None], train: Callable[[Any, Any, dict[str, Any]], Any]
) -> None:
    """Hook into the training of all models of `keras`.

    `prepare(model)` is called before a train function is made or taken from the cache. It returns what a cached
    function must have been made for; None accepts any. `train(fit, model, arguments)` is called instead of `fit(model,
    **arguments)`.
    """
    trainer = trainer_of(keras)
    make_train_function, fit = trainer.make_train_function, trainer.fit
    signature = inspect.signature(fit)

    @functools.wraps(make_train_function)
    def make(self: Any, force: bool = False) -> Any:
        purpose = prepare(self)
        is_stale = purpose is not None and getattr(self.train_function, "distrun_purpose", None) != purpose
        result = make_train_function(self, force=force or is_stale)
        if purpose is not None and self.train_function is not None:
            self.train_function.distrun_purpose = purpose
        return result

    @functools.wraps(fit)
    def run(self: Any, *args: Any, **options: Any) -> Any:
        arguments = signature.bind(self, *args, **options).arguments
        self = arguments.pop("self", self)
        return train(fit, self, arguments)

    trainer.make_train_function = make
    trainer.fit = run


def first_callback(keras: Any, arguments: dict[str, Any], callback: Any, model: Any) -> dict[str, Any]:
    """Return the arguments of `fit` with `callback` before all other callbacks, which must be of the same Keras."""
    given = arguments.get("callbacks")
    if isinstance(given, keras.callbacks.CallbackList):
        callback.set_model(model)
        given.callbacks.insert(0, callback)
        return arguments
    given = callbacks_of(given)
    for each in given:
        if not isinstance(each, keras.callbacks.Callback) and hasattr(each, "on_train_begin"):
            raise UsageError(
                f"{type(each).__name__} is not a callback of {keras.__name__}, the Keras of this model: set "
                "TF_USE_LEGACY_KERAS=1 if the whole program is to use tf_keras, and unset it otherwise"
            )
    return {**arguments, "callbacks": [callback, *given]}
