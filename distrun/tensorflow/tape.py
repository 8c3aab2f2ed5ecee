"""A tf.GradientTape whose gradients are those of all ranks together."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from distrun.errors import UsageError
from distrun.runtime import world
from distrun.runtime.operations.reduction import Average, ReduceOp
from distrun.runtime.process_set import ProcessSet, global_process_set
from distrun.tensorflow.compression import Compression, Compressor, wire_type
from distrun.tensorflow.gradients import GradientReduction


class DistributedGradientTape(tf.GradientTape):
    """Wraps a tape, before or after it has recorded: `tape = DistributedGradientTape(tape)`.

    `gradient` reduces what the tape's own returns, over the ranks. All else is the wrapped tape's, which stays as it
    was.
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
        """The arguments are Horovod's.

        `sparse_as_dense`: make tf.IndexedSlices dense before they are reduced. `gradient_predivide_factor`: divide by
        so much before adding up, and by the rest afterwards. The devices, `num_groups`, `groups` and
        `scale_local_gradients` change nothing: gradients travel together in any case.

        Raises:
            UsageError: this is not a tape, or one that is wrapped already.
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
        self._reduction = GradientReduction(
            op, float(gradient_predivide_factor), wire_type(compression), sparse_as_dense, process_set, compression
        )

    @tf.autograph.experimental.do_not_convert
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
        use_generic_names: bool = False,
    ) -> Any:
        """`tf.GradientTape.gradient`, reduced over the ranks. `use_generic_names` is accepted for Horovod's sake."""
        gradients = self._wrapped.gradient(target, sources, output_gradients, unconnected_gradients)
        flat = self._reduction.reduce(tf.nest.flatten(gradients), tf.nest.flatten(sources))
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
