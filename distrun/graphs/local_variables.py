"""Local variables: variables that differ between ranks, so that their gradients are not reduced."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from distrun.errors import UsageError


class LocalVariables:
    """The local variables of one optimizer or tape. Layers may be built later."""

    def __init__(self) -> None:
        self._variables: list[Any] = []
        self._layers: list[Any] = []

    def add(self, variable: Any) -> None:
        """Keep the gradient of `variable` on this rank."""
        self._variables.append(variable)

    def add_layers(self, layers: Any) -> None:
        """Keep the gradients of the trainable weights of one layer or several on this rank; refuse what is no layer."""
        layers = [layers] if hasattr(layers, "trainable_weights") else list(layers or ())
        for layer in layers:
            if not hasattr(layer, "trainable_weights"):
                raise UsageError(
                    f"local_layers takes Keras layers, and {type(layer).__name__} is none: give it a list such as "
                    "model.layers[-1:], or register single variables"
                )
        self._layers += layers

    def all(self) -> list[Any]:
        """Return the variables. Layers that are not built yet contribute none."""
        return self._variables + [weight for layer in self._layers for weight in layer.trainable_weights]

    def others(self, variables: Iterable[Any]) -> list[Any]:
        """Return those of `variables` that are not local."""
        return without(variables, self.all())

    def apart(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        factor: Callable[[], Any],
        reduce: Callable[[list[Any], list[Any]], list[Any]],
    ) -> list[Any]:
        """Return the gradients: of local variables times `factor()`, and of others as `reduce(gradients, variables)`
        returns them."""
        local = {id(variable) for variable in self.all()}
        if not local:
            return reduce(list(gradients), list(variables))
        places = [place for place, variable in enumerate(variables[: len(gradients)]) if id(variable) not in local]
        own = factor()
        results = [scaled(gradient, own) for gradient in gradients]
        reduced = reduce([gradients[place] for place in places], [variables[place] for place in places])
        for place, gradient in zip(places, reduced, strict=True):
            results[place] = gradient
        return results


def without(variables: Iterable[Any], left_out: Iterable[Any]) -> list[Any]:
    """Return the `variables` that are not among `left_out`. Variables are compared by identity: == compares values."""
    unwanted = {id(variable) for variable in left_out}
    return [variable for variable in variables if id(variable) not in unwanted]


def scaled(gradient: Any, factor: Any) -> Any:
    """Return a gradient of any framework times `factor`, a number or a TensorFlow scalar.

    None stays None, and tf.IndexedSlices stay tf.IndexedSlices.
    """
    if gradient is None or (isinstance(factor, float) and factor == 1.0):
        return gradient
    if not isinstance(factor, float):
        factor = sys.modules["tensorflow"].cast(factor, gradient.dtype)
    if type(gradient).__name__ == "IndexedSlices":
        return type(gradient)(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor
