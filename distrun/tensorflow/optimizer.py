"""DistributedOptimizer for optimizers of TensorFlow 1, and through `distrun.keras` for optimizers of Keras."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tensorflow as tf

from distrun.errors import UsageError
from distrun.graphs.gradients import OptimizerSettings
from distrun.graphs.tensorflow.accumulation import Accumulation, when
from distrun.runtime.collectives.compressors import Compression, Compressor
from distrun.runtime.collectives.gradient_settings import check_groups, check_passes
from distrun.runtime.operations.reduction import Average, ReduceOp
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.runtime.world import world
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
    """Return an optimizer that applies the gradients of all ranks.

    A `tf.compat.v1.train.Optimizer` is wrapped: `compute_gradients`, and with it `minimize`, reduces the gradients. A
    Keras optimizer, of Keras 2 or 3, becomes distributed itself: see `distrun.keras.DistributedOptimizer`.

    Args:
        optimizer: an optimizer of `tf.compat.v1.train` or of Keras.
        name: the name of the optimizer that is returned.
        use_locking: see `tf.compat.v1.train.Optimizer`.
        compression: the form in which tensors travel between hosts, or your own compressor (see `Compression`).
        sparse_as_dense: make tf.IndexedSlices dense before they are reduced.
        backward_passes_per_step: update after each such number of calls of `compute_gradients`, with the sum of their
            gradients. In a graph the sums are local variables: run `tf.compat.v1.local_variables_initializer`. The
            global step counts all calls.
        op: `Average` or `Sum`, and for optimizers of TensorFlow 1 also `Min`, `Max` or `Product`.
        gradient_predivide_factor: a value f divides gradients by f before they are summed, and by size / f afterwards
            (Average only).
        average_aggregated_gradients: average the gradients of `backward_passes_per_step` calls instead of summing them.
        process_set: the ranks that train together. On other ranks the gradients are not changed.
        scale_local_gradients: divide the gradients of local variables (see `register_local_var`) by the number of
            ranks, as if the other ranks had none.
        device_dense, device_sparse, num_groups, groups: accepted for Horovod's sake. Gradients travel together in any
            case.

    Raises:
        UsageError: this is not an optimizer of TensorFlow or Keras, it is wrapped already, or arguments do not fit it.
    """
    world.current()
    if isinstance(optimizer, _DistributedOptimizer):
        raise UsageError(
            "this optimizer is a DistributedOptimizer already, and would reduce its gradients twice: wrap it once"
        )
    check_groups(num_groups, groups)
    settings = OptimizerSettings.of(
        op, gradient_predivide_factor, compression, sparse_as_dense, process_set, scale_local=scale_local_gradients
    )
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        passes = check_passes(backward_passes_per_step)
        if passes > 1 and world.is_elastic():
            raise UsageError(
                f"backward_passes_per_step={passes} of an optimizer of TensorFlow 1 does not go with an elastic job, "
                "whose ranks would count the passes differently: leave it out, or leave --elastic out"
            )
        settings = replace(settings, factor=1.0 / passes if average_aggregated_gradients else 1.0)
        return _DistributedOptimizer(optimizer, GradientReduction(settings), passes, name, use_locking)
    if not {kind.__module__.partition(".")[0] for kind in type(optimizer).__mro__} & {"keras", "tf_keras"}:
        raise UsageError(
            f"DistributedOptimizer wraps an optimizer of tf.compat.v1.train or tf.keras.optimizers, not "
            f"{type(optimizer).__module__}.{type(optimizer).__name__}: use the distrun face of its library"
        )
    from distrun.keras.optimizer import wrap  # not at the top: it loads Keras, and tf.GradientTape alone does without

    return wrap(optimizer, name, settings, backward_passes_per_step, average_aggregated_gradients)


class _DistributedOptimizer(tf.compat.v1.train.Optimizer):
    """A wrapped optimizer of TensorFlow 1."""

    def __init__(
        self, optimizer: Any, reduction: GradientReduction, passes: int, name: str | None, use_locking: bool
    ) -> None:
        super().__init__(use_locking, name or f"Distributed{type(optimizer).__name__}")
        self._wrapped = optimizer
        self._reduction = reduction
        self._accumulation = Accumulation(passes) if passes > 1 else None
        self._is_due: Any = None  # whether an update is due after the last pass

    def register_local_var(self, var: Any) -> None:
        """Make a variable local: its gradient stays on this rank. It is not reduced, only divided by the number of
        ranks unless `scale_local_gradients` is False."""
        self._reduction.local.add(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return the pairs of gradient and variable, with the gradients reduced over the ranks. After a pass without an
        update they are this rank's sums so far."""
        pairs = self._wrapped.compute_gradients(*args, **kwargs)
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]

        def reduce(gradients: list[Any]) -> list[Any]:
            return self._reduction.reduce(gradients, variables)

        if self._accumulation is None:
            gradients = reduce(gradients)
        else:
            self._is_due, gradients = self._accumulation.add(gradients, variables, reduce)
        return list(zip(gradients, variables, strict=True))

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Update the variables. After a pass without an update, only increment the global step.

        Raises:
            UsageError: with `backward_passes_per_step` > 1, `compute_gradients` was not called.
        """
        if self._accumulation is None:
            return self._wrapped.apply_gradients(grads_and_vars, global_step, name)
        if self._is_due is None:
            raise UsageError(
                f"backward_passes_per_step={self._accumulation.passes} adds gradients up in compute_gradients, which "
                "has not been called: get the gradients from it, or call minimize"
            )
        pairs = list(grads_and_vars)
        return when(
            self._is_due,
            lambda: self._wrapped.apply_gradients(pairs, global_step, name),
            lambda: None if global_step is None else tf.compat.v1.assign_add(global_step, 1),
        )

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrapped.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrapped.get_slot_names(*args, **kwargs)

    def variables(self) -> Any:
        return self._wrapped.variables()
