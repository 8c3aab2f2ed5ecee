"""From the gradients of this rank to those of all ranks together, for the tape and the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from distrun.errors import UsageError
from distrun.graphs import signatures
from distrun.graphs.collective import Collective
from distrun.graphs.compression import Compressor, wire_type
from distrun.graphs.tensorflow import reduce_gradients
from distrun.runtime import world
from distrun.runtime.collectives.consistency import describe
from distrun.runtime.operations.reduction import Average, ReduceOp
from distrun.runtime.process_set import ProcessSet


@dataclass(frozen=True)
class GradientReduction:
    """How gradients are reduced."""

    op: ReduceOp
    predivide: float
    wire: str
    sparse_as_dense: bool
    process_set: int

    @classmethod
    def of(
        cls,
        op: ReduceOp,
        gradient_predivide_factor: float,
        compression: Compressor,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> GradientReduction:
        """From Horovod's arguments.

        Raises:
            UsageError: they do not fit together.
        """
        if gradient_predivide_factor != 1.0 and op is not Average:
            raise UsageError(
                f"gradient_predivide_factor={gradient_predivide_factor} divides an average in two steps, and op={op} is none: "
                "leave it out"
            )
        if not gradient_predivide_factor > 0:
            raise UsageError(f"gradient_predivide_factor={gradient_predivide_factor} must be greater than 0")
        wire = wire_type(compression)
        return cls(op, float(gradient_predivide_factor), wire, sparse_as_dense, process_set.process_set_id)

    @tf.autograph.experimental.do_not_convert
    def reduce(self, gradients: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks together; None stays None. In a world of one they are as they were.

        The ranks compare the sources, and which of them have gradients, when they are first seen.

        Raises:
            MismatchError: the sources differ, in number, name, shape or dtype, or in what their gradients are.
        """
        if world.size() == 1:
            return list(gradients)
        entries = [
            entry_of(source, place) + self._note(gradient)
            for place, (gradient, source) in enumerate(zip(gradients, sources, strict=True))
        ]
        number = signatures.signature_id(entries, "the variables that have gradients")
        collective = Collective(
            "allreduce",
            f"gradients.{number}",
            self.op,
            prescale=1.0 / self.predivide,
            postscale=self.predivide,
            process_set=self.process_set,
            wire=self.wire,
        )
        return reduce_gradients(gradients, collective, self.sparse_as_dense)

    def _note(self, gradient: Any) -> str:
        """How a gradient travels, if not as a tensor: one rank's first might otherwise be added to another one's second."""
        if gradient is None:
            return " without gradient"
        return " in slices" if isinstance(gradient, tf.IndexedSlices) and not self.sparse_as_dense else ""


def entry_of(source: Any, place: int) -> str:
    """How a variable is listed when ranks compare theirs; of a plain tensor the shape may change from batch to batch."""
    name = getattr(source, "path", None) or (source.name if hasattr(source, "assign") else None)
    if name is None:
        return f"tensor {place} {tf.convert_to_tensor(source).dtype.name}"
    return describe(signatures.canonical_name(name), source.shape, tf.as_dtype(source.dtype).name)
