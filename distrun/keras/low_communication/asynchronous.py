"""AsyncOptimizer: a Keras 3 optimizer whose parameters are on servers, so that workers need not wait for each other."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from distrun.errors import NotOfferedError, UsageError
from distrun.keras.library import around_training, attach, switch_class
from distrun.runtime import world
from distrun.servers.layout import Layout, Parameter
from distrun.servers.rules import Rule
from distrun.servers.session import Session, check_staleness, endpoints

_KNOWN = "SGD, Adam, AdamW and Adagrad of keras.optimizers"
_UNSUPPORTED = ("gradient_accumulation_steps", "use_ema", "amsgrad")
_taking_part: list[bool] = []


def AsyncOptimizer(  # noqa: N802 - a class, as far as its users see
    optimizer: Any, staleness: float = 4, *, overlap: bool = True
) -> Any:
    """Keep the parameters of `optimizer` on the job's parameter servers; returns it, for `compile`.

    In each step of `fit` a worker pushes its gradients to the servers, which apply them on arrival, and takes the
    newest parameters. All workers begin with the parameters of rank 0, which they take when the optimizer is built:
    in a loop of your own, call `optimizer.build(model.trainable_variables)` before the first step.

    Args:
        optimizer: SGD, Adam, AdamW or Adagrad of Keras 3, on the backends TensorFlow and torch. It stays the same
            object; its class becomes a subclass of its class.
        staleness, overlap: see `distrun.torch.AsyncOptimizer`.

    It has two more methods: `synchronize()` waits for what is under way, and brings the newest parameters into the
    model: before an evaluation, or before saving it. `close()` leaves: other workers wait for this one no more. The
    state of the optimizer stays on the servers, and is not saved with the model. Gradients of embeddings are pushed as
    dense ones.

    Raises:
        UsageError: the job has no servers, or an argument cannot be.
        NotOfferedError: the servers cannot do what this optimizer does, or not on this backend.
    """
    staleness = check_staleness(staleness)
    endpoints()
    if isinstance(optimizer, _AsyncOptimizer):
        raise UsageError("this optimizer is an AsyncOptimizer already: make one of each optimizer once")
    if keras.backend.backend() not in ("tensorflow", "torch"):
        raise NotOfferedError(
            f"AsyncOptimizer is not offered on Keras's backend {keras.backend.backend()}: use tensorflow or torch"
        )
    _check(optimizer)
    if not _taking_part:
        _taking_part.append(True)
        around_training(keras, _without_xla, lambda fit, model, arguments: fit(model, **arguments))
    attach(optimizer, "_distrun_worker", _Worker(staleness, overlap and staleness > 0))
    plain = type(optimizer)
    kind: Any = types.new_class(plain.__name__, (_AsyncOptimizer, plain))
    kind.__qualname__, kind.__module__, kind.__doc__ = plain.__qualname__, plain.__module__, plain.__doc__
    switch_class(optimizer, kind)
    if optimizer.built:
        optimizer._distrun_worker.open(optimizer)
    return optimizer


class _AsyncOptimizer(keras.optimizers.Optimizer):
    """The class mixed into an optimizer's."""

    _distrun_worker: _Worker

    def synchronize(self) -> None:
        """Wait for what is under way, and bring the newest parameters into the model."""
        self._distrun_worker.synchronize()

    def close(self) -> None:
        """Leave: other workers wait for this one no more."""
        self._distrun_worker.close()

    def build(self, variables: Any) -> None:
        """Take the parameters of rank 0, before the first step."""
        super().build(variables)
        self._distrun_worker.open(self)

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> None:
        grads = [keras.ops.convert_to_tensor(grad) for grad in self._clip_gradients(grads)]
        worker = self._distrun_worker
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            present = worker.places_of(trainable_variables)
            types_ = [tf.float32] * len(worker.variables)

            def exchange(rate: Any, *arrays: Any) -> list[Any]:
                return worker.exchange(float(rate), present, arrays)

            values = tf.numpy_function(exchange, [self.learning_rate, *grads], types_, name="distrun_push")
            for variable, value in zip(worker.variables, values, strict=True):
                value.set_shape(variable.shape)
                variable.assign(tf.cast(value, variable.dtype))
            return
        rate = float(keras.ops.convert_to_numpy(self.learning_rate))
        arrays = [keras.ops.convert_to_numpy(grad) for grad in grads]
        worker.load(worker.exchange(rate, worker.places_of(trainable_variables), arrays))


class _Worker:
    """One optimizer's exchange with the servers, from its first step on."""

    def __init__(self, staleness: float, overlap: bool) -> None:
        self._staleness = staleness
        self._overlap = overlap
        self._session: Session | None = None
        self.variables: list[Any] = []
        """The variables that the optimizer trains, in the order of the layout."""

    def open(self, optimizer: Any) -> None:
        """Connect with the servers, and begin with the parameters of rank 0."""
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            with tf.init_scope():  # `build` may be called while a function is traced
                self._open(optimizer)
        else:
            self._open(optimizer)

    def _open(self, optimizer: Any) -> None:
        if self._session is not None:
            return
        self.variables = list(optimizer._trainable_variables)
        parameters = tuple(
            Parameter(variable.path, tuple(variable.shape), int(not optimizer._use_weight_decay(variable)))
            for variable in self.variables
        )
        rule = _rule(optimizer)
        rules = (rule, Rule(rule.name, {**rule.settings, "weight_decay": 0.0}))
        session = self._session = Session(Layout(parameters, rules, world.size(), self._staleness == 0))
        if world.rank() == 0:
            session.start({index: _array(variable) for index, variable in enumerate(self.variables)})
        session.pull(self._staleness)
        self.load(self._values())

    def places_of(self, variables: Sequence[Any]) -> list[int]:
        """Return the places of variables that have gradients among those of the optimizer."""
        places = {id(variable): place for place, variable in enumerate(self.variables)}
        return [places[id(variable)] for variable in variables]

    def exchange(self, rate: float, places: Sequence[int], gradients: Sequence[Any]) -> list[Any]:
        """Push the gradients of a step; return newer values: those of this exchange, or of the one before."""
        session = self._session
        assert session is not None
        session.await_values()
        values = self._values() if self._overlap else []
        present = [False] * len(self.variables)
        for index in range(len(self.variables)):
            session.gradient_of(index)[...] = 0.0
        for place, gradient in zip(places, gradients, strict=True):
            session.gradient_of(place)[...] = gradient
            present[place] = True
        session.push([rate, rate], present, {}, self._staleness, ahead=int(self._overlap))
        if not self._overlap:
            session.await_values()
            values = self._values()
        return values

    def load(self, values: Sequence[Any]) -> None:
        """Give the variables of the model these values."""
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(value)

    def synchronize(self) -> None:
        """Bring the newest parameters into the model; before the first step there are none."""
        if self._session is not None:
            self._session.pull(self._staleness)
            self.load(self._values())

    def close(self) -> None:
        """Leave."""
        if self._session is not None:
            self._session.close()

    def _values(self) -> list[Any]:
        assert self._session is not None
        return [self._session.value_of(index).copy() for index in range(len(self.variables))]


def _without_xla(model: Any) -> None:
    """Have TensorFlow not compile a train function in which gradients are pushed."""
    if isinstance(getattr(model, "optimizer", None), _AsyncOptimizer) and model.jit_compile:
        model.jit_compile = False


def _array(variable: Any) -> Any:
    return np.asarray(keras.ops.convert_to_numpy(variable.value), np.float32)


def _check(optimizer: Any) -> None:
    """Check that servers can do what an optimizer does.

    Raises:
        NotOfferedError: they cannot.
    """
    _rule(optimizer)
    for name in _UNSUPPORTED:
        if getattr(optimizer, name, None):
            raise NotOfferedError(
                f"{type(optimizer).__name__}({name}={getattr(optimizer, name)}) is not offered by parameter servers: "
                "leave it out"
            )


def _rule(optimizer: Any) -> Rule:
    """Return the rule that does what an optimizer does."""
    name = type(optimizer).__name__
    if name not in ("SGD", "Adam", "AdamW", "Adagrad") or not isinstance(optimizer, getattr(keras.optimizers, name)):
        raise NotOfferedError(f"{name} cannot run on parameter servers: allowed are {_KNOWN}, and none derived")
    common = {"weight_decay": float(optimizer.weight_decay or 0.0)}
    if name == "SGD":
        momentum = float(optimizer.momentum)
        return Rule("keras.SGD", {**common, "momentum": momentum, "nesterov": bool(optimizer.nesterov)})
    common["eps"] = float(optimizer.epsilon)
    if name == "Adagrad":
        return Rule("keras.Adagrad", {**common, "initial": float(optimizer.initial_accumulator_value)})
    return Rule("keras.Adam", {**common, "beta1": float(optimizer.beta_1), "beta2": float(optimizer.beta_2)})
