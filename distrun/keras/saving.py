"""Loading models that were saved while training, to go on training them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import keras

from distrun.graphs.compression import Compression, Compressor
from distrun.keras.optimizer import DistributedOptimizer


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Compressor = Compression.none,
    legacy_opts: bool = False,
    **options: Any,
) -> Any:
    """`keras.models.load_model`, and its optimizer made a `DistributedOptimizer` with the state it was saved with.

    The file may have been written with or without distrun; what `DistributedOptimizer` was told then is not in it. Each
    rank reads the file. A model saved without an optimizer is loaded as it is.

    Args:
        filepath: where to read from.
        custom_optimizers: classes of optimizers of your own that are not registered with Keras.
        custom_objects: see `keras.models.load_model`.
        compression: see `DistributedOptimizer`.
        legacy_opts: accepted for Horovod's sake.
        options: more options of `DistributedOptimizer`.
    """
    known = {kind.__name__: kind for kind in custom_optimizers or ()} | dict(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=known)
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(model.optimizer, compression=compression, **options)
    return model
