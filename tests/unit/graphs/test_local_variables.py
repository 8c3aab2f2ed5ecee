"""Local variables keep their gradients, whatever the framework: here tensors are numbers."""

from __future__ import annotations

import pytest

from distrun.errors import UsageError
from distrun.graphs.local_variables import LocalVariables, scaled


class Layer:
    def __init__(self, *weights: object) -> None:
        self.trainable_weights = list(weights)


class IndexedSlices:
    def __init__(self, values: float, indices: object, dense_shape: object) -> None:
        self.values, self.indices, self.dense_shape = values, indices, dense_shape


def doubled(gradients, variables):
    assert len(gradients) == len(variables)
    return [None if gradient is None else 2 * gradient for gradient in gradients]


def test_without_local_variables_all_gradients_are_reduced():
    assert LocalVariables().apart([1.0, None], ["a", "b"], lambda: 0.5, doubled) == [2.0, None]


def test_gradients_of_local_variables_and_layers_are_scaled_and_the_others_reduced_in_place():
    local, kernel, bias, other = LocalVariables(), object(), object(), object()
    layer = Layer()
    local.add(bias)
    local.add_layers(layer)
    layer.trainable_weights.append(kernel)  # built later
    assert local.apart([1.0, 10.0, 100.0], [kernel, other, bias], lambda: 0.25, doubled) == [0.25, 20.0, 25.0]
    assert local.others([kernel, other, bias]) == [other]


def test_there_may_be_fewer_gradients_than_variables():
    local = LocalVariables()
    local.add("b")
    assert local.apart([1.0], ["a", "b"], lambda: 0.5, doubled) == [2.0]


def test_variables_are_compared_by_identity():
    local = LocalVariables()
    local.add([1.0])
    assert local.others([[1.0]]) == [[1.0]]


def test_what_is_no_layer_is_refused():
    with pytest.raises(UsageError, match=r"local_layers takes Keras layers, and str is none: .*model\.layers"):
        LocalVariables().add_layers(["dense"])


def test_slices_stay_slices():
    slices = scaled(IndexedSlices(2.0, "rows", "shape"), 0.5)
    assert (slices.values, slices.indices, slices.dense_shape) == (1.0, "rows", "shape")
    assert scaled(None, 0.5) is None
