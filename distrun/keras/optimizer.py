"""DistributedOptimizer: any Keras optimizer, with the gradients of all ranks. And saved models, to train them on."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from distrun.errors import UsageError
from distrun.graphs.gradients import OptimizerSettings
from distrun.graphs.local_variables import LocalVariables
from distrun.keras import fitting, library
from distrun.keras.choice import CHOSEN, library_of
from distrun.keras.gradients import LOCAL, Distributed
from distrun.keras.library import Library
from distrun.runtime.collectives.compressors import Compression, Compressor
from distrun.runtime.collectives.gradient_settings import check_groups, check_passes
from distrun.runtime.operations.reduction import Average, ReduceOp, Sum
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set

Optimizer = TypeVar("Optimizer")


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Optimizer,
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
    scale_local_gradients: bool = True,
) -> Optimizer:
    """Make `optimizer` use the gradients of all ranks together, and return it.

    Gradients are reduced where the optimizer takes them (`apply`, `apply_gradients`, `stateless_apply`), so before
    clipping, weight decay and averages of weights: in `fit`, `train_on_batch`, a `train_step` of your own and a loop of
    your own. With `gradient_accumulation_steps` they are reduced once per update, after accumulation. Under a
    `LossScaleOptimizer`, given or made by `compile` for mixed_float16, they are reduced in every step and before it
    looks for infinities, so that all ranks skip the same steps. The inner optimizers of a `MultiOptimizer` get reduced
    gradients, in every step as well.

    Args:
        optimizer: an optimizer of any class, of Keras 3 or of Keras 2 (tf_keras, its legacy optimizers too). It stays
            the same object with its state, but its class becomes a subclass of its class. A saved file holds the plain
            optimizer, and loads without distrun. See `load_model`.
        name: a new name for the optimizer.
        compression: what travels between hosts, or a compressor of your own; see
            `distrun.runtime.collectives.compressors`.
        sparse_as_dense: reduce sparse gradients (TensorFlow's embeddings) as dense ones.
        gradient_predivide_factor: f divides gradients by f before they are summed and by size / f after (Average only).
        op: Average or Sum.
        backward_passes_per_step: the number of steps per update. In Keras 3 this sets `gradient_accumulation_steps`,
            which is possible only while the optimizer has no state. `iterations` counts updates.
        average_aggregated_gradients: average the gradients of these steps instead of adding them up.
        process_set: the ranks that train together. On other ranks the gradients stay as they are.
        scale_local_gradients: divide the gradients of local variables (see the optimizer's `register_local_var`) by the
            number of ranks, as if the other ranks had none.
        num_groups, groups: accepted for Horovod's sake; all gradients travel together in any case.
        device_dense, device_sparse: accepted for Horovod's sake.

    Raises:
        UsageError: an argument is impossible, or the optimizer is wrapped already.
    """
    check_groups(num_groups, groups)
    settings = OptimizerSettings.of(
        op, gradient_predivide_factor, compression, sparse_as_dense, process_set, scale_local=scale_local_gradients
    )
    wrap(optimizer, name, settings, backward_passes_per_step, average_aggregated_gradients)
    return optimizer


def PartialDistributedOptimizer(  # noqa: N802 - Horovod's name
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
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Make `optimizer` a `DistributedOptimizer` that leaves some layers to each rank: their gradients are not reduced.

    Their weights then differ between the ranks. `BroadcastGlobalVariablesCallback` leaves them out if its model has
    this optimizer, or if it is given these variables.

    Args:
        optimizer: a Keras optimizer, which stays the same object.
        local_layers: a layer or several, built or not, whose trainable weights are local.
        scale_local_gradients: divide the gradients of local variables by the number of ranks, as if the other ranks had
            none.
        name, device_dense, device_sparse, compression, sparse_as_dense: see `DistributedOptimizer`.
        gradient_predivide_factor, op, backward_passes_per_step: see `DistributedOptimizer`.
        average_aggregated_gradients, num_groups, groups, process_set: see `DistributedOptimizer`.

    Raises:
        UsageError: as `DistributedOptimizer` does, or `local_layers` are not layers.
    """
    layers = LocalVariables()
    layers.add_layers(local_layers)
    check_groups(num_groups, groups)
    settings = OptimizerSettings.of(
        op, gradient_predivide_factor, compression, sparse_as_dense, process_set, scale_local=scale_local_gradients
    )
    wrap(optimizer, name, settings, backward_passes_per_step, average_aggregated_gradients)
    library.attach(optimizer, LOCAL, layers)
    return optimizer


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Compressor = Compression.none,
    legacy_opts: bool = False,
    **options: Any,
) -> Any:
    """Load a model as `keras.models.load_model` does, and make its optimizer, with its saved state, a
    `DistributedOptimizer`.

    With TF_USE_LEGACY_KERAS=1 the function is the one of tf_keras. The file may have been written with or without
    distrun. It does not hold the arguments of `DistributedOptimizer`. Each rank reads the file. A model saved without
    an optimizer is loaded as it is.

    Args:
        filepath: where to read from.
        custom_optimizers: classes of optimizers of your own that are not registered with Keras.
        custom_objects: see `keras.models.load_model`.
        compression: see `DistributedOptimizer`.
        legacy_opts: in Keras 2, load optimizers as `tf.keras.optimizers.legacy`. Files of TensorFlow 2.11 and later
            name the right class themselves.
        options: more options of `DistributedOptimizer`.
    """
    known = {kind.__name__: kind for kind in custom_optimizers or ()} | dict(custom_objects or {})
    model = CHOSEN.load_model(filepath, known, legacy_opts)
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(model.optimizer, compression=compression, **options)
    return model


def wrap(optimizer: Any, name: str | None, settings: OptimizerSettings, passes: int, is_average: bool) -> Any:
    """Return `optimizer`, made to reduce gradients by `settings` and update its variables once in `passes` passes."""
    # All arguments are checked before the optimizer is changed.
    kind = library_to_wrap(optimizer)
    passes = check_passes(passes)
    if settings.op not in (Average, Sum):
        raise UsageError(f"op={settings.op!r} does not reduce the gradients of Keras optimizers: use Average or Sum")
    settings.is_alone()  # raises if there is no world yet, or no such set
    settings = replace(settings, factor=kind.accumulate(optimizer, passes, is_average))
    if name is not None:
        kind.rename(optimizer, name)
    library.switch_class(optimizer, _distributed(type(optimizer), settings, kind))
    return optimizer


def library_to_wrap(optimizer: Any, wrapper: str = "DistributedOptimizer") -> Library:
    """Return the Keras of an optimizer that the function `wrapper` is to wrap, with distrun's hooks in its `fit`.
    Refuse anything else, and what is wrapped already.
    """
    if isinstance(optimizer, Distributed):
        raise UsageError(f"this {type(optimizer).__name__} is a DistributedOptimizer already: wrap an optimizer once")
    found = library_of(optimizer)
    if found is None or not isinstance(optimizer, found.OPTIMIZERS):
        kind = optimizer if isinstance(optimizer, type) else type(optimizer)
        raise UsageError(
            f"distrun.keras.{wrapper} wraps a Keras optimizer, not {kind.__module__}.{kind.__name__}: give "
            "it one such as keras.optimizers.Adam(1e-3), or use the DistributedOptimizer of distrun.torch, "
            "distrun.jax or distrun.tensorflow"
        )
    take_part(found)
    return found


# The classes ----------------------------------------------------------------------------------------------------------

_classes: dict[tuple[type, OptimizerSettings], type] = {}


def _distributed(plain: type, settings: OptimizerSettings, kind: Library) -> type:
    """Return the subclass of the optimizer class `plain` that reduces gradients. `from_config` of it, and so a clone,
    makes an optimizer that reduces as well."""
    if (plain, settings) in _classes:
        return _classes[plain, settings]
    made: Any = types.new_class(plain.__name__, (kind.mixin_of(plain), plain))
    made.__qualname__, made.__module__, made.__doc__ = plain.__qualname__, plain.__module__, plain.__doc__
    made.distrun_settings, made.distrun_plain, made.distrun_library = settings, plain, kind
    kind.save_as(made, plain)
    _classes[plain, settings] = made
    return made


def _move_out(scaling: Any) -> None:
    """Make a new loss-scaling optimizer reduce gradients in place of the optimizer inside it, before it looks for
    infinities."""
    inner = scaling.inner_optimizer
    if isinstance(inner, Distributed) and not isinstance(scaling, Distributed):
        settings, kind = inner.distrun_settings, inner.distrun_library
        for name, value in [each for each in vars(inner).items() if each[0].startswith("_distrun_")]:
            library.attach(scaling, name, value)
            object.__delattr__(inner, name)
        library.switch_class(inner, inner.distrun_plain)
        library.switch_class(scaling, _distributed(type(scaling), settings, kind))


_taking_part: list[Any] = []


def take_part(kind: Library) -> None:
    """Install the hooks of `fitting` in a version of Keras, and `_move_out` in its loss-scaling optimizers; once."""
    if kind.PACKAGE not in _taking_part:
        _taking_part.append(kind.PACKAGE)
        fitting.take_part(kind)
        for scaling in kind.scaling_optimizers():
            library.call_after(scaling, "__init__", _move_out)


take_part(CHOSEN)
