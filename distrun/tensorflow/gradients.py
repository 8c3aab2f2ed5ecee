"""The reduction of gradients over the ranks, for the tape and the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from distrun.graphs import residuals as residuals, signatures
from distrun.graphs.gradients import OptimizerSettings
from distrun.graphs.local_variables import LocalVariables, scaled
from distrun.graphs.tensorflow import reduce_gradients
from distrun.graphs.tensorflow.facts import number, stay_out
from distrun.runtime.collectives.compressors import compressed
from distrun.runtime.collectives.consistency import describe


@dataclass(frozen=True)
class GradientReduction:
    """Reduces gradients according to its settings."""

    settings: OptimizerSettings
    local: LocalVariables = field(default_factory=LocalVariables)
    """The variables, or other sources, whose gradients stay on their rank."""

    @tf.autograph.experimental.do_not_convert
    def reduce(self, gradients: Sequence[Any], sources: Sequence[Any], use_generic_names: bool = False) -> list[Any]:
        """Return the gradients reduced over the ranks. None stays None. In a world of one, and on ranks outside the
        process set, the gradients are returned unchanged.

        When sources are first seen, the ranks compare them and the kinds of their gradients.
        """
        ranks = self.settings.process_set
        gradients = [scaled(gradient, self.settings.factor) for gradient in gradients]
        if self.settings.is_alone():
            stay_out(ranks)
            return gradients

        def reduce(gradients: list[Any], sources: list[Any]) -> list[Any]:
            return self._reduce(gradients, sources, use_generic_names)

        def share() -> Any:
            return 1.0 / number(ranks.size, tf.float32) if self.settings.scale_local else 1.0

        return self.local.apart(gradients, sources, share, reduce)

    def _reduce(self, gradients: Sequence[Any], sources: Sequence[Any], use_generic_names: bool) -> list[Any]:
        if not gradients:
            return []
        entries = [
            entry_of(source, place, use_generic_names) + self._note(gradient)
            for place, (gradient, source) in enumerate(zip(gradients, sources, strict=True))
        ]
        number = signatures.signature_id(entries, "the variables that have gradients", self.settings.process_set)
        call = residuals.named(self.settings.call(f"gradients.{number}"), entries)
        return compressed(
            self.settings.compression,
            gradients,
            lambda tensors: reduce_gradients(tensors, call, self.settings.sparse_as_dense),
        )

    def _note(self, gradient: Any) -> str:
        """Return a note for a gradient that is not sent as a dense tensor. Without it, ranks with other kinds of
        gradients would add up gradients of different sources."""
        if gradient is None:
            return " without gradient"
        return " in slices" if isinstance(gradient, tf.IndexedSlices) and not self.settings.sparse_as_dense else ""


def entry_of(source: Any, place: int, is_generic: bool = False) -> str:
    """Return the entry of a variable or tensor in the list that the ranks compare. The entry of a plain tensor has no
    shape, because that may change from batch to batch."""
    name = getattr(source, "path", None) or (source.name if hasattr(source, "assign") else None)
    if name is None:
        return f"tensor {place} {tf.convert_to_tensor(source).dtype.name}"
    name = f"gradient {place}" if is_generic else signatures.canonical_name(name)
    return describe(name, source.shape, tf.as_dtype(source.dtype).name)
