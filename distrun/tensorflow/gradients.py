"""The reduction of this rank's gradients with those of the other ranks, for the tape and the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from distrun.graphs import signatures
from distrun.graphs.tensorflow import reduce_gradients
from distrun.runtime.collectives.consistency import describe
from distrun.runtime.collectives.gradient_settings import GradientSettings
from distrun.tensorflow.compression import Compression, Compressor, compressed


@dataclass(frozen=True)
class GradientReduction(GradientSettings):
    """The reduction of gradients by given settings."""

    compression: Compressor = Compression.none
    """Called for dense gradients if it is the user's own; otherwise `wire` says it all."""

    @tf.autograph.experimental.do_not_convert
    def reduce(self, gradients: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
        """Return the gradients of all ranks together; None stays None. Of a single rank they stay as they are.

        The ranks compare the sources, and which of them have gradients, when they are first seen.

        Raises:
            MismatchError: the sources differ, in number, name, shape or dtype, or in what their gradients are.
        """
        if self.process_set.size() == 1:
            return list(gradients)
        entries = [
            entry_of(source, place) + self._note(gradient)
            for place, (gradient, source) in enumerate(zip(gradients, sources, strict=True))
        ]
        number = signatures.signature_id(entries, "the variables that have gradients", self.process_set)
        call = self.call(f"gradients.{number}")
        return compressed(
            self.compression, gradients, lambda given: reduce_gradients(given, call, self.sparse_as_dense)
        )

    def _note(self, gradient: Any) -> str:
        """Return how a gradient travels, if not as a tensor: or one rank's first might be added to another rank's
        second."""
        if gradient is None:
            return " without gradient"
        return " in slices" if isinstance(gradient, tf.IndexedSlices) and not self.sparse_as_dense else ""


def entry_of(source: Any, place: int) -> str:
    """Return a variable's entry in the list that ranks compare; a plain tensor's shape may change from batch to
    batch."""
    name = getattr(source, "path", None) or (source.name if hasattr(source, "assign") else None)
    if name is None:
        return f"tensor {place} {tf.convert_to_tensor(source).dtype.name}"
    return describe(signatures.canonical_name(name), source.shape, tf.as_dtype(source.dtype).name)
