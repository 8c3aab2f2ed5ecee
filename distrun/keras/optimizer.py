"""DistributedOptimizer: any Keras optimizer, fed with the gradients of all ranks."""

from __future__ import annotations

import types
from typing import Any, ClassVar

import keras

from distrun.errors import UsageError
from distrun.graphs.compression import Compression, Compressor, wire_type
from distrun.keras import gradients, internals
from distrun.keras.gradients import Settings
from distrun.runtime.collectives.gradient_settings import check_passes
from distrun.runtime.operations.reduction import Average, ReduceOp, Sum
from distrun.runtime.process_set import ProcessSet, global_process_set


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Make `optimizer` use the gradients of all ranks together; returns it.

    Gradients are reduced where the optimizer takes them (`apply`, `apply_gradients`, `stateless_apply`), so before
    clipping, weight decay and averages of weights: in `fit`, `train_on_batch`, a `train_step` of your own and a loop of
    your own. With `gradient_accumulation_steps` they are reduced once per update, after accumulation; under a
    `LossScaleOptimizer`, given or made by `compile` for mixed_float16, in every step and before it looks for
    infinities, so that all ranks skip the same steps. The inner optimizers of a `MultiOptimizer` are fed with reduced
    gradients, in every step as well.

    Args:
        optimizer: a Keras optimizer of any class. It stays the same object with its state; its class becomes a subclass
            of its class. What is saved is the plain optimizer, and loads without distrun; see `load_model`.
        name: a new name for the optimizer.
        compression: what travels between hosts; see `distrun.graphs.compression`.
        sparse_as_dense: reduce sparse gradients (TensorFlow's embeddings) as dense ones.
        gradient_predivide_factor: f divides gradients by f before they are summed and by size / f after (Average only).
        op: Average or Sum.
        backward_passes_per_step: update after every so many steps; sets `gradient_accumulation_steps`, which an
            optimizer that has no state yet can have.
        average_aggregated_gradients: average the gradients of these steps, as Keras by itself does, instead of adding
            them up.
        device_dense, device_sparse, num_groups, groups: accepted for Horovod's sake; small gradients are fused in any
            case.

    Raises:
        UsageError: an argument cannot be; the optimizer is wrapped already.
    """
    _check_optimizer(optimizer)
    passes = check_passes(backward_passes_per_step)
    settings = Settings(
        op,
        float(gradient_predivide_factor),
        wire_type(compression),
        sparse_as_dense,
        process_set,
        1.0 if average_aggregated_gradients else float(passes),
    )
    if op not in (Average, Sum):
        raise UsageError(f"op={op!r} does not reduce the gradients of Keras optimizers: use Average or Sum")
    process_set.size()  # says so if there is no world yet
    _accumulate(optimizer, passes)
    if name is not None:
        optimizer.name = name
    internals.switch_class(optimizer, _distributed(type(optimizer), settings))
    return optimizer


def _check_optimizer(optimizer: Any) -> None:
    if isinstance(optimizer, Distributed):
        raise UsageError(f"this {type(optimizer).__name__} is a DistributedOptimizer already: wrap an optimizer once")
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        kind = optimizer if isinstance(optimizer, type) else type(optimizer)
        raise UsageError(
            f"distrun.keras.DistributedOptimizer wraps a Keras optimizer, not {kind.__module__}.{kind.__name__}: give "
            "it one such as keras.optimizers.Adam(1e-3), or use the DistributedOptimizer of distrun.torch, "
            "distrun.jax or distrun.tensorflow"
        )


def _accumulate(optimizer: Any, passes: int) -> None:
    """Have the optimizer update its variables with the sum of so many passes."""
    if passes == 1:
        return
    inner = internals.core(optimizer)
    if inner.built or inner.gradient_accumulation_steps or hasattr(inner, "optimizers"):
        raise UsageError(
            f"backward_passes_per_step={passes} cannot be given to this {type(inner).__name__}, which "
            + (
                "has optimizers of its own"
                if hasattr(inner, "optimizers")
                else "has been built already"
                if inner.built
                else f"has gradient_accumulation_steps={inner.gradient_accumulation_steps}"
            )
            + ": set gradient_accumulation_steps when you make the optimizer, and leave backward_passes_per_step out"
        )
    inner.gradient_accumulation_steps = passes


# The classes ----------------------------------------------------------------------------------------------------------


class Distributed(keras.optimizers.Optimizer):
    """The class that `DistributedOptimizer` mixes into an optimizer's."""

    distrun_settings: ClassVar[Settings]
    distrun_plain: ClassVar[type]

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Update the variables with the gradients of all ranks."""
        if not self.gradient_accumulation_steps:
            variables = internals.variables_of(self, trainable_variables)
            grads = gradients.reduce(self, list(grads), variables, self.distrun_settings)
        return super().apply(grads, trainable_variables)

    def __reduce__(self) -> Any:
        """Pickle as what a file would hold: the plain optimizer."""
        _, arguments = super().__reduce__()
        return self.distrun_plain._unpickle_model, arguments  # type: ignore[attr-defined]

    def _clip_gradients(self, grads: Any) -> Any:
        if self.gradient_accumulation_steps:
            grads = internals.at_update(self, self._distrun_reduce_accumulated, list(grads))
        return super()._clip_gradients(grads)

    def _distrun_reduce_accumulated(self, grads: list[Any]) -> list[Any]:
        variables = internals.variables_of(self, None)
        return gradients.reduce(self, grads, variables, self.distrun_settings)


class DistributedLossScaling(Distributed):
    """The class mixed into `LossScaleOptimizer`, whose two ways of applying gradients are independent of each other."""

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        """Update the variables, given by value, with the gradients of all ranks."""
        variables = internals.variables_of(self, None)
        grads = gradients.reduce(self, list(grads), variables, self.distrun_settings)
        return super().stateless_apply(optimizer_variables, grads, trainable_variables)


_classes: dict[tuple[type, Settings], type] = {}


def _distributed(plain: type, settings: Settings) -> type:
    """The subclass of an optimizer's class that reduces gradients. `from_config`, and so a clone, makes its like."""
    if (plain, settings) in _classes:
        return _classes[plain, settings]
    mixin = DistributedLossScaling if issubclass(plain, internals.LossScaleOptimizer) else Distributed
    kind = types.new_class(plain.__name__, (mixin, plain))
    kind.__qualname__, kind.__module__, kind.__doc__ = plain.__qualname__, plain.__module__, plain.__doc__
    kind.distrun_settings, kind.distrun_plain = settings, plain  # type: ignore[attr-defined]
    internals.save_as(kind, plain)
    _classes[plain, settings] = kind
    return kind


def _move_out(scaling: Any) -> None:
    """Reduce outside a new `LossScaleOptimizer` what the optimizer inside it would have reduced."""
    inner = scaling.inner_optimizer
    if isinstance(inner, Distributed) and not isinstance(scaling, Distributed):
        settings = inner.distrun_settings
        internals.switch_class(inner, inner.distrun_plain)
        internals.switch_class(scaling, _distributed(type(scaling), settings))


internals.after_loss_scaling(_move_out)
