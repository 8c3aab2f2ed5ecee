"""A tf.GradientTape whose gradients are reduced over the ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from distrun.errors import UsageError
from distrun.graphs.gradients import OptimizerSettings
from distrun.runtime.collectives.compressors import Compression, Compressor
from distrun.runtime.collectives.gradient_settings import check_groups
from distrun.runtime.operations.reduction import Average, ReduceOp
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.runtime.world import world
from distrun.tensorflow.gradients import GradientReduction


class DistributedGradientTape(tf.GradientTape):
    """Wraps a tape, before or after it has recorded: `tape = DistributedGradientTape(tape)`.

    `gradient` reduces the wrapped tape's gradients over the ranks. All other methods are those of the wrapped tape,
    which is not changed.
    """

    def __init__(
        self,
        gradtape: tf.GradientTape,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Compressor = Compression.none,
        sparse_as_dense: bool = False,
        op: ReduceOp = Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        """Wrap a tape. The arguments are Horovod's.

        Args:
            gradtape: a tape, before or after it has recorded.
            compression: the form in which tensors travel between hosts, or your own compressor (see `Compression`).
            sparse_as_dense: make tf.IndexedSlices dense before they are reduced.
            op: `Average`, `Sum`, `Min`, `Max` or `Product`.
            gradient_predivide_factor: a value f divides gradients by f before they are summed, and by size / f
                afterwards (Average only).
            process_set: the ranks that train together. On other ranks the gradients are not changed.
            scale_local_gradients: divide the gradients of local sources (see `register_local_source`) by the number of
                ranks, as if the other ranks had none.
            device_dense, device_sparse, num_groups, groups: accepted for Horovod's sake. Gradients travel together in
                any case.

        Raises:
            UsageError: this is not a tape, or it is wrapped already, or another argument is impossible.
        """
        if isinstance(gradtape, DistributedGradientTape):
            raise UsageError(
                "this tape is a DistributedGradientTape already, and would reduce its gradients twice: wrap it once"
            )
        if not isinstance(gradtape, tf.GradientTape):
            raise UsageError(
                f"DistributedGradientTape wraps a tf.GradientTape, not {type(gradtape).__name__}: write "
                "`with tf.GradientTape() as tape: ...` and then `tape = DistributedGradientTape(tape)`"
            )
        world.current()
        self._wrapped = gradtape
        check_groups(num_groups, groups)
        settings = OptimizerSettings.of(
            op, gradient_predivide_factor, compression, sparse_as_dense, process_set, scale_local=scale_local_gradients
        )
        self._reduction = GradientReduction(settings)

    def register_local_source(self, source: Any) -> None:
        """Make a variable, or another source, local: its gradient stays on this rank. It is not reduced, only divided
        by the number of ranks unless `scale_local_gradients` is False."""
        self._reduction.local.add(source)

    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Compute this rank's gradients, without reducing or scaling them, and separate local sources from the others.

        Args:
            target, sources, output_gradients, unconnected_gradients: see `tf.GradientTape.gradient`.

        Returns:
            The pairs `(source, gradient)` of local sources, and the pairs of all others.
        """
        gradients = self._wrapped.gradient(target, sources, output_gradients, unconnected_gradients)
        pairs = list(zip(tf.nest.flatten(sources), tf.nest.flatten(gradients), strict=True))
        local = {id(source) for source in self._reduction.local.all()}
        return [pair for pair in pairs if id(pair[0]) in local], [pair for pair in pairs if id(pair[0]) not in local]

    @tf.autograph.experimental.do_not_convert
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
        use_generic_names: bool = False,
    ) -> Any:
        """Return what `tf.GradientTape.gradient` does, reduced over the ranks. With `use_generic_names` the variables'
        names may differ between the ranks."""
        gradients = self._wrapped.gradient(target, sources, output_gradients, unconnected_gradients)
        flat = self._reduction.reduce(tf.nest.flatten(gradients), tf.nest.flatten(sources), use_generic_names)
        return tf.nest.pack_sequence_as(gradients, flat)

    # The rest is the wrapped tape's -----------------------------------------------------------------------------------

    def __enter__(self) -> DistributedGradientTape:
        self._wrapped.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._wrapped.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_wrapped"], name)

    def watch(self, tensor: Any) -> None:
        self._wrapped.watch(tensor)

    def stop_recording(self) -> Any:
        return self._wrapped.stop_recording()

    def reset(self) -> None:
        self._wrapped.reset()

    def watched_variables(self) -> Any:
        return self._wrapped.watched_variables()

    def jacobian(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrapped.jacobian(*args, **kwargs)

    def batch_jacobian(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrapped.batch_jacobian(*args, **kwargs)


def PartialDistributedGradientTape(  # noqa: N802 - Horovod's name
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> DistributedGradientTape:
    """Return a `DistributedGradientTape` that does not reduce the gradients of some layers: each rank keeps its own.

    Args:
        gradtape: a tape, before or after it has recorded.
        local_layers: a Keras layer or several, built or not, whose trainable weights are local.
        scale_local_gradients: divide the gradients of local sources by the number of ranks, as if other ranks had none.
        device_dense, device_sparse, compression, sparse_as_dense, op: see `DistributedGradientTape`.
        gradient_predivide_factor, num_groups, groups, process_set: see `DistributedGradientTape`.

    Raises:
        UsageError: as `DistributedGradientTape` raises, or `local_layers` are not layers.
    """
    check_groups(num_groups, groups)
    settings = OptimizerSettings.of(
        op, gradient_predivide_factor, compression, sparse_as_dense, process_set, scale_local=scale_local_gradients
    )
    tape = DistributedGradientTape(gradtape)
    tape._reduction = GradientReduction(settings)
    tape._reduction.local.add_layers(local_layers)
    return tape
