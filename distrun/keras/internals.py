"""All that rests on the inside of Keras, which may change from one version to the next. Tried with Keras 3.5 to 3.15.

What is taken for granted, and checked when this is imported:

- `Optimizer.apply` is where all updates pass; with gradient accumulation `_clip_gradients` sees the accumulated
  gradients, and is called once per update (on JAX in every step, since there are no branches).
- `LossScaleOptimizer` looks at the gradients before it hands them on, and its `stateless_apply` does not call its
  `apply`.
- A trainer's `fit` calls `make_train_function`, which traces `optimizer.apply` into what it caches as `train_function`.
- A saved file names an optimizer as two registries of classes say.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import keras

from distrun.errors import UsageError

BACKEND: str = keras.backend.backend()


def _misses(what: str) -> UsageError:
    return UsageError(
        f"Keras {keras.__version__} has no {what}, which distrun.keras builds on: install Keras 3.5 to 3.15, or a "
        "newer distrun"
    )


try:
    from keras.src.api_export import REGISTERED_OBJS_TO_NAMES
    from keras.src.saving.object_registration import GLOBAL_CUSTOM_NAMES
except ImportError as error:
    raise _misses("registry of public names") from error

LossScaleOptimizer: Any = keras.optimizers.LossScaleOptimizer
_EXPECTED = {
    keras.optimizers.Optimizer: ("apply", "_clip_gradients", "stateless_apply", "build"),
    LossScaleOptimizer: ("apply", "stateless_apply"),
}
for _owner, _names in _EXPECTED.items():
    for _name in _names:
        if not hasattr(_owner, _name):
            raise _misses(f"{_owner.__name__}.{_name}")


def _trainer() -> Any:
    """The class of the backend from which `keras.Model` has its `fit`."""
    for owner in keras.Model.__mro__:
        if "make_train_function" in vars(owner) and "fit" in vars(owner):
            return owner
    raise _misses("Trainer.make_train_function")


# Optimizers -----------------------------------------------------------------------------------------------------------


def switch_class(optimizer: Any, kind: type) -> None:
    """Make an optimizer an instance of a subclass of its class, past the tracking of attributes."""
    object.__setattr__(optimizer, "__class__", kind)


def attach(optimizer: Any, name: str, value: Any) -> None:
    """Set an attribute that is not part of the optimizer's state."""
    object.__setattr__(optimizer, name, value)


def save_as(kind: type, plain: type) -> None:
    """Have files say of instances of `kind` what they would say of `plain`, if possible by its public name."""
    for ancestor in plain.__mro__:  # on torch, keras.optimizers.SGD() is an instance of another, internal SGD
        name = REGISTERED_OBJS_TO_NAMES.get(ancestor)
        if name is not None and ancestor.__name__ == plain.__name__:
            REGISTERED_OBJS_TO_NAMES[kind] = name
            return
    if plain in GLOBAL_CUSTOM_NAMES:
        GLOBAL_CUSTOM_NAMES[kind] = GLOBAL_CUSTOM_NAMES[plain]


def core(optimizer: Any) -> Any:
    """The optimizer inside a `LossScaleOptimizer`, or the optimizer itself."""
    return optimizer.inner_optimizer if isinstance(optimizer, LossScaleOptimizer) else optimizer


def variables_of(optimizer: Any, given: Sequence[Any] | None) -> list[Any]:
    """The variables that the gradients given to `apply` belong to."""
    return list(optimizer._trainable_variables if given is None else given)


def at_update(optimizer: Any, function: Callable[[list[Any]], list[Any]], gradients: list[Any]) -> list[Any]:
    """Within `_clip_gradients` of an optimizer that accumulates: `function(gradients)` in steps that update the
    variables."""
    if BACKEND != "jax":  # the others do not come here in other steps
        return function(gradients)
    import jax

    is_update = (optimizer._iterations.value + 1) % optimizer.gradient_accumulation_steps == 0
    return list(jax.lax.cond(is_update, function, lambda gradients: gradients, gradients))


def velocities(optimizer: Any) -> list[Any]:
    """The variables of a momentum that contains the learning rate: they are to be rescaled when that changes."""
    optimizer = core(optimizer)
    if (
        isinstance(optimizer, (keras.optimizers.SGD, keras.optimizers.RMSprop))
        and optimizer.momentum
        and optimizer.built
    ):
        return [
            variable
            for variable in getattr(optimizer, "momentums", None) or optimizer._momentums
            if variable is not None
        ]
    return []


def after_loss_scaling(hook: Callable[[Any], None]) -> None:
    """Call `hook` with each `LossScaleOptimizer` that is made from now on; `compile` makes one for mixed_float16."""
    plain = LossScaleOptimizer.__init__

    @functools.wraps(plain)
    def initialise(self: Any, *args: Any, **options: Any) -> None:
        plain(self, *args, **options)
        hook(self)

    LossScaleOptimizer.__init__ = initialise


def not_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have torch.compile, which would look into it, call `function` as it is."""
    if BACKEND != "torch":
        return function
    import torch

    return torch._dynamo.disable(function)  # type: ignore[no-untyped-call]


# Trainers -------------------------------------------------------------------------------------------------------------


def around_training(prepare: Callable[[Any], type | None], train: Callable[[Any, Any, dict[str, Any]], Any]) -> None:
    """Take part in training from now on.

    `prepare(model)` is called before a train function is made or taken from the cache, and returns what it must have
    been made for (None: anything). `train(fit, model, arguments)` is called instead of `fit(model, **arguments)`.
    """
    trainer = _trainer()
    make_train_function, fit = trainer.make_train_function, trainer.fit
    signature = inspect.signature(fit)

    @functools.wraps(make_train_function)
    def make(self: Any, force: bool = False) -> Any:
        purpose = prepare(self)
        is_stale = purpose is not None and getattr(self.train_function, "distrun_purpose", None) is not purpose
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


def is_built(model: Any) -> bool:
    """Whether the model has its variables when training begins: those that it will have, for layers may be unused."""
    if BACKEND != "tensorflow" or model.optimizer.built:  # the others have built it by then
        return True
    return all(layer.built for layer in model._flatten_layers())


def finish(model: Any) -> None:
    """Wait for the steps that the backend still works on."""
    if BACKEND == "jax":
        import jax

        jax.block_until_ready([variable.value for variable in model.optimizer.variables])


def settle() -> None:
    """Wait for the steps that the backend still works on, after `fit` has failed, whatever their outcome."""
    if BACKEND == "jax":
        from distrun.graphs.jax.mechanism import finish

        finish()


def first_callback(arguments: dict[str, Any], callback: Any, model: Any) -> dict[str, Any]:
    """The arguments of `fit` with one more callback, before all others."""
    given = arguments.get("callbacks")
    if isinstance(given, keras.callbacks.CallbackList):
        callback.set_model(model)
        given.callbacks.insert(0, callback)
        return arguments
    if isinstance(given, keras.callbacks.Callback):
        given = [given]
    return {**arguments, "callbacks": [callback, *(given or [])]}
