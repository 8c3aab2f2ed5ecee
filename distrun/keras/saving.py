"""Loading saved models, to resume their training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from distrun.keras.choice import CHOSEN
from distrun.keras.optimizer import DistributedOptimizer
from distrun.runtime.collectives.compressors import Compression, Compressor


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
