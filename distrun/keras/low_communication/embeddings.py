"""Embeddings of Keras 3 kept by rows: a forward pass pulls the rows of its batch, and only rows have gradients."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from distrun.keras.library import attach, switch_class

Pull = Callable[[Any, NDArray[np.int64]], NDArray[np.float32] | None]
"""Takes an embedding layer and unique rows of it, and returns their newest values. None: the layer's own are valid."""


def embeddings_of(model: Any) -> list[Any]:
    """Return the layers of a model that can be kept by rows: `keras.layers.Embedding`, but not its subclasses."""
    layers = [] if model is None else model._flatten_layers()
    return [layer for layer in layers if type(layer) is keras.layers.Embedding]


def pull_before(layer: Any, pull: Pull) -> None:
    """Make a layer pull the rows of each batch before it uses them, and produce gradients by rows."""
    kind: Any = types.new_class("Embedding", (_Embedding,))
    plain = keras.layers.Embedding
    kind.__qualname__, kind.__module__, kind.__doc__ = plain.__qualname__, plain.__module__, plain.__doc__
    attach(layer, "_distrun_pull", pull)
    attach(layer, "supports_jit", False)  # XLA cannot call Python
    switch_class(layer, kind)


def pull_no_more(layer: Any) -> None:
    """Undo `pull_before`. A function that was compiled before still calls `pull`."""
    switch_class(layer, keras.layers.Embedding)
    attach(layer, "supports_jit", True)


class _Embedding(keras.layers.Embedding):
    """The class that a layer becomes an instance of."""

    _distrun_pull: Pull

    def call(self, inputs: Any) -> Any:
        """Return the rows that the inputs name, after they have been pulled."""
        if keras.backend.backend() == "torch":
            return self._call_torch(inputs)
        self._pull_tensorflow(inputs)
        return super().call(inputs)

    def _pull_tensorflow(self, inputs: Any) -> None:
        import tensorflow as tf

        variable = self.embeddings.value
        if not isinstance(variable, tf.Variable):  # a stateless call, with values given by the caller
            return

        def pull(indices: NDArray[np.int64], own: NDArray[np.float32]) -> NDArray[np.float32]:
            found = self._distrun_pull(self, indices)
            return own if found is None else found.astype(own.dtype, copy=False)

        flat = inputs.values if isinstance(inputs, tf.SparseTensor) else inputs
        flat = flat.flat_values if isinstance(flat, tf.RaggedTensor) else flat
        flat = tf.reshape(tf.cast(flat, tf.int64), [-1])
        flat = tf.where(flat < 0, flat + self.input_dim, flat)  # as `keras.ops.take` counts
        # The layer itself raises for indices out of range.
        rows = tf.unique(tf.boolean_mask(flat, (flat >= 0) & (flat < self.input_dim))).y
        values = tf.numpy_function(pull, [rows, tf.gather(variable, rows)], variable.dtype, name="distrun_pull")
        values.set_shape([None, self.output_dim])
        variable.scatter_update(tf.IndexedSlices(values, rows))

    def _call_torch(self, inputs: Any) -> Any:
        import torch

        variable = self.embeddings.value
        indices = keras.ops.convert_to_tensor(inputs).long()
        indices = torch.where(indices < 0, indices + self.input_dim, indices)
        if not self._pull_torch(variable, indices):
            return super().call(inputs)
        looked_up = torch.nn.functional.embedding(indices, variable, sparse=True)
        return keras.ops.cast(looked_up, self.compute_dtype)

    def _pull_torch(self, variable: Any, indices: Any) -> bool:
        """Pull the rows at `indices` into `variable` and return whether the layer is kept by rows."""
        import torch

        if indices.is_meta or not isinstance(variable, torch.nn.Parameter):
            return False  # a stateless call
        rows = torch.unique(indices)
        rows = rows[(rows >= 0) & (rows < self.input_dim)]
        found = self._distrun_pull(self, rows.cpu().numpy())
        if found is None:
            return False
        variable.data[rows] = torch.from_numpy(found).to(variable)
        return True


def split(gradient: Any) -> tuple[Any, Any]:
    """Return the values of an embedding's gradient and their rows, without duplicates, as tensors of the backend."""
    if keras.backend.backend() == "torch":
        if gradient.is_sparse:
            gradient = gradient.coalesce()
            return gradient.values(), gradient.indices()[0]
    else:
        import tensorflow as tf

        if isinstance(gradient, tf.IndexedSlices):
            rows, places = tf.unique(gradient.indices)
            return tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows)), tf.cast(rows, tf.int64)
    return gradient, keras.ops.arange(gradient.shape[0], dtype="int64")


def whole(gradient: Any) -> Any:
    """Return a gradient as a dense tensor of the backend. Duplicate rows are added up."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.convert_to_tensor(gradient)
    return gradient.to_dense() if gradient.is_sparse else gradient
