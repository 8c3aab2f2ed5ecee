"""AsyncOptimizer: a Keras 3 optimizer with its parameters on servers, so that workers need not wait for each other."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from distrun.errors import NotOfferedError, UsageError
from distrun.keras.library import around_training, attach, switch_class
from distrun.keras.low_communication.embeddings import embeddings_of, pull_before, pull_no_more, split, whole
from distrun.keras.low_communication.server_rules import check, check_rows, rule_of
from distrun.methods.servers.layout import Layout, Parameter
from distrun.methods.servers.rules import Rule
from distrun.methods.servers.session import Session, check_staleness, endpoints
from distrun.runtime.world import world

_taking_part: list[bool] = []


def AsyncOptimizer(  # noqa: N802 - a class, as far as its users see
    optimizer: Any, staleness: float = 4, *, model: Any = None, overlap: bool = True
) -> Any:
    """Keep the parameters of `optimizer` on the job's parameter servers, and return it, for `compile`.

    In each step of `fit` a worker pushes its gradients to the servers, which apply them on arrival, and pulls the
    newest parameters. All workers begin with the parameters of rank 0, which they take when the optimizer is built. In
    a loop of your own, call `optimizer.build(model.trainable_variables)` before the first step.

    Args:
        optimizer: SGD, Adam, AdamW or Adagrad of Keras 3, on the backends TensorFlow and torch. It stays the same
            object, but its class becomes a subclass of its class.
        staleness, overlap: see `distrun.torch.AsyncOptimizer`.
        model: the model whose `keras.layers.Embedding` layers are kept by rows: a forward pass pulls the rows of its
            batch, and a step pushes the rows that have a gradient. This needs SGD without momentum, or Adagrad, both
            without weight decay. Without `model`, gradients of embeddings are pushed as dense ones.

    The optimizer gets two more methods. `synchronize()` waits for pending exchanges and loads the newest parameters,
    with all rows of embeddings, into the model; call it before you evaluate or save the model. `close()` leaves the
    servers: other workers no longer wait for this one, and embeddings pull no more rows. The optimizer's state stays on
    the servers, and is not saved with the model.

    Raises:
        UsageError: the job has no servers, or an argument is impossible.
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
    check(optimizer)
    embeddings = embeddings_of(model)
    check_rows(optimizer, embeddings)
    if not _taking_part:
        _taking_part.append(True)
        around_training(keras, _without_xla, lambda fit, model, arguments: fit(model, **arguments))
    attach(optimizer, "_distrun_worker", _Worker(staleness, overlap and staleness > 0, embeddings))
    plain = type(optimizer)
    kind: Any = types.new_class(plain.__name__, (_AsyncOptimizer, plain))
    kind.__qualname__, kind.__module__, kind.__doc__ = plain.__qualname__, plain.__module__, plain.__doc__
    switch_class(optimizer, kind)
    if optimizer.built:
        optimizer._distrun_worker.open(optimizer)
    return optimizer


class _AsyncOptimizer(keras.optimizers.Optimizer):
    """The class mixed into an optimizer's class."""

    _distrun_worker: _Worker

    def synchronize(self) -> None:
        """Wait for pending exchanges, and load the newest parameters into the model."""
        self._distrun_worker.synchronize()

    def close(self) -> None:
        """Leave the servers, so that other workers no longer wait for this one."""
        self._distrun_worker.close()

    def build(self, variables: Any) -> None:
        """Take the parameters of rank 0, before the first step."""
        super().build(variables)
        self._distrun_worker.open(self)

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> None:
        worker = self._distrun_worker
        places = worker.places_of(trainable_variables)
        gradients, rows = [], []
        for place, gradient in zip(places, grads, strict=True):
            if place in worker.sparse:
                values, own = split(gradient)
                gradients.append(values)  # the other rows are zero, so their norm is the norm of the whole gradient
                rows.append(own)
            else:
                gradients.append(whole(gradient))
        gradients = self._clip_gradients(gradients)
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            def exchange(rate: Any, *arrays: Any) -> list[Any]:
                return worker.exchange(float(rate), places, arrays[: len(places)], arrays[len(places) :])

            types_ = [tf.float32] * len(worker.dense)
            arguments = [self.learning_rate, *gradients, *rows]
            values = tf.numpy_function(exchange, arguments, types_, name="distrun_push")
            for place, value in zip(worker.dense, values, strict=True):
                variable = worker.variables[place]
                value.set_shape(variable.shape)
                variable.assign(tf.cast(value, variable.dtype))
            return
        rate = float(keras.ops.convert_to_numpy(self.learning_rate))
        arrays, indices = ([keras.ops.convert_to_numpy(item) for item in items] for items in (gradients, rows))
        worker.load(worker.exchange(rate, places, arrays, indices))


class _Worker:
    """One optimizer's exchange with the servers, from its first step on."""

    def __init__(self, staleness: float, overlap: bool, embeddings: Sequence[Any]) -> None:
        """`embeddings` are the layers that are kept by rows, if the optimizer trains them."""
        self._staleness = staleness
        self._overlap = overlap
        self._session: Session | None = None
        self.variables: list[Any] = []
        """The variables that the optimizer trains, in the order of the layout."""
        self.dense: list[int] = []
        """The places of the variables that are pulled whole, after each step."""
        self.sparse: list[int] = []
        """The places of the variables that are kept by rows."""
        self._embeddings = embeddings
        for layer in embeddings:
            pull_before(layer, self._pull)

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
        tables = {id(layer.embeddings) for layer in self._embeddings if layer.built}
        parameters = tuple(
            Parameter(
                variable.path,
                tuple(variable.shape),
                int(not optimizer._use_weight_decay(variable)),
                id(variable) in tables,
            )
            for variable in self.variables
        )
        rule = rule_of(optimizer)
        rules = (rule, Rule(rule.name, {**rule.settings, "weight_decay": 0.0}))
        session = Session(Layout(parameters, rules, world.size(), self._staleness == 0))
        self.sparse = session.layout.tables()
        self.dense = [index for index in range(len(parameters)) if index not in self.sparse]
        if world.rank() == 0:
            session.start({index: _array(variable) for index, variable in enumerate(self.variables)})
        session.pull(self._staleness)
        self._session = session
        self.load(self._values())

    def places_of(self, variables: Sequence[Any]) -> list[int]:
        """Return the places of variables that have gradients among those of the optimizer."""
        places = {id(variable): place for place, variable in enumerate(self.variables)}
        return [places[id(variable)] for variable in variables]

    def exchange(self, rate: float, places: Sequence[int], gradients: Sequence[Any], rows: Sequence[Any]) -> list[Any]:
        """Push the gradients of a step and return newer dense values, of this exchange or of the one before.

        `gradients` are whole, or of rows for variables that are kept by rows, whose indices are in `rows`.
        """
        session = self._session
        assert session is not None
        session.await_values()
        values = self._values() if self._overlap else []
        present = [place in places for place in range(len(self.variables))]
        for place in self.dense:
            session.gradient_of(place)[...] = 0.0
        sparse = {}
        remaining = iter(rows)
        for place, gradient in zip(places, gradients, strict=True):
            if place in self.sparse:
                sparse[place] = (next(remaining), gradient)
            else:
                session.gradient_of(place)[...] = gradient
        session.push([rate, rate], present, sparse, self._staleness, ahead=int(self._overlap))
        if not self._overlap:
            session.await_values()
            values = self._values()
        return values

    def load(self, values: Sequence[Any]) -> None:
        """Assign `values` to the dense variables of the model."""
        for place, value in zip(self.dense, values, strict=True):
            self.variables[place].assign(value)

    def synchronize(self) -> None:
        """Load the newest parameters into the model. Before the first step there are none."""
        session = self._session
        if session is not None:
            session.pull(self._staleness)
            self.load(self._values())
            for place in self.sparse:
                variable = self.variables[place]
                rows = session.rows(place, np.arange(variable.shape[0]), self._staleness)
                variable.assign(rows.reshape(variable.shape))

    def close(self) -> None:
        """Leave the servers."""
        for layer in self._embeddings:
            pull_no_more(layer)
        if self._session is not None:
            self._session.close()

    def _pull(self, layer: Any, rows: Any) -> Any:
        """Return the newest values of rows of an embedding; None before the first step and after `close`, when it is
        not kept by rows."""
        if self._session is None or not self._session.is_open:
            return None
        place = next((place for place in self.sparse if self.variables[place] is layer.embeddings), None)
        return None if place is None else self._session.rows(place, rows, self._staleness)

    def _values(self) -> list[Any]:
        assert self._session is not None
        return [self._session.value_of(place).copy() for place in self.dense]


def _without_xla(model: Any) -> None:
    """Turn off XLA for a model whose train function pushes gradients."""
    if isinstance(getattr(model, "optimizer", None), _AsyncOptimizer) and model.jit_compile:
        model.jit_compile = False


def _array(variable: Any) -> Any:
    return np.asarray(keras.ops.convert_to_numpy(variable.value), np.float32)
