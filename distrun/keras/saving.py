"""Loading saved models to train them further."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from distrun.graphs.compression import Compression, Compressor
from distrun.keras.choice import CHOSEN
from distrun.keras.optimizer import DistributedOptimizer


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Compressor = Compression.none,
    legacy_opts: bool = False,
    **options: Any,
) -> Any:
    """Load a model by `keras.models.load_model`, and make its optimizer a `DistributedOptimizer`, with its saved state.

    With TF_USE_LEGACY_KERAS=1 the model is loaded by tf_keras. The file may have been written with or without distrun,
    and does not contain the options of `DistributedOptimizer`. Each rank reads the file. A model that was saved without
    an optimizer stays without one.

    Args:
        filepath: where to read from.
        custom_optimizers: classes of optimizers of your own that are not registered with Keras.
        custom_objects: see `keras.models.load_model`.
        compression: see `DistributedOptimizer`.
        legacy_opts: with Keras 2, load optimizers as classes of `tf.keras.optimizers.legacy`. Files of TensorFlow 2.11
            and later contain which class they need.
        options: more options of `DistributedOptimizer`.
    """
    known = {kind.__name__: kind for kind in custom_optimizers or ()} | dict(custom_objects or {})
    model = CHOSEN.load_model(filepath, known, legacy_opts)
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(model.optimizer, compression=compression, **options)
    return model
