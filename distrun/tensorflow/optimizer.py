"""DistributedOptimizer: for the optimizers of TensorFlow 1, and by way of `distrun.keras` for those of Keras."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from distrun.errors import UsageError
from distrun.runtime import world
from distrun.runtime.operations.reduction import Average, ReduceOp
from distrun.runtime.process_set import ProcessSet, global_process_set
from distrun.tensorflow.compression import Compression, Compressor, wire_type
from distrun.tensorflow.gradients import GradientReduction


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer that applies the gradients of all ranks together.

    A `tf.compat.v1.train.Optimizer` is wrapped: `compute_gradients` reduces, and so `minimize` does. A Keras optimizer
    stays itself: see `distrun.keras.DistributedOptimizer`.

    `sparse_as_dense`: make tf.IndexedSlices dense before they are reduced. `gradient_predivide_factor`: divide by so
    much before adding up, and by the rest afterwards. `backward_passes_per_step` and `average_aggregated_gradients` are
    for Keras optimizers. The devices, `num_groups`, `groups` and `scale_local_gradients` are accepted for Horovod's
    sake.

    Raises:
        UsageError: this is not an optimizer of TensorFlow or Keras, it is wrapped already, or arguments do not fit it.
    """
    world.current()
    if isinstance(optimizer, _DistributedOptimizer):
        raise UsageError(
            "this optimizer is a DistributedOptimizer already, and would reduce its gradients twice: wrap it once"
        )
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if backward_passes_per_step != 1:
            raise UsageError(
                f"backward_passes_per_step={backward_passes_per_step} is not offered for {type(optimizer).__name__}, "
                "an optimizer of TensorFlow 1: use one of tf.keras.optimizers"
            )
        reduction = GradientReduction(
            op, float(gradient_predivide_factor), wire_type(compression), sparse_as_dense, process_set, compression
        )
        return _DistributedOptimizer(optimizer, reduction, name, use_locking)
    if not isinstance(optimizer, tf.keras.optimizers.Optimizer):
        raise UsageError(
            f"DistributedOptimizer wraps an optimizer of tf.compat.v1.train or tf.keras.optimizers, not "
            f"{type(optimizer).__module__}.{type(optimizer).__name__}: use the distrun face of its library"
        )
    from distrun import keras  # not at the top: it loads Keras, and tf.GradientTape alone does without

    return keras.DistributedOptimizer(
        optimizer,
        name=name,
        compression=compression,  # type: ignore[arg-type]  # the user's own are refused there
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        process_set=process_set,
    )


class _DistributedOptimizer(tf.compat.v1.train.Optimizer):
    """A wrapped optimizer of TensorFlow 1."""

    def __init__(self, optimizer: Any, reduction: GradientReduction, name: str | None, use_locking: bool) -> None:
        super().__init__(use_locking, name or f"Distributed{type(optimizer).__name__}")
        self._wrapped = optimizer
        self._reduction = reduction

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """The pairs of gradient and variable, with the gradients of all ranks together."""
        pairs = self._wrapped.compute_gradients(*args, **kwargs)
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        return list(zip(self._reduction.reduce(gradients, variables), variables, strict=True))

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrapped.apply_gradients(*args, **kwargs)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrapped.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrapped.get_slot_names(*args, **kwargs)

    def variables(self) -> Any:
        return self._wrapped.variables()
