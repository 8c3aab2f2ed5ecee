"""Loading models that were saved while training, to go on training them."""

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
    """`keras.models.load_model`, and its optimizer made a `DistributedOptimizer` with the state it was saved with.

    With TF_USE_LEGACY_KERAS=1 it is that of tf_keras. The file may have been written with or without distrun; what
    `DistributedOptimizer` was told then is not in it. Each rank reads the file. A model saved without an optimizer is
    loaded as it is.

    Args:
        filepath: where to read from.
        custom_optimizers: classes of optimizers of your own that are not registered with Keras.
        custom_objects: see `keras.models.load_model`.
        compression: see `DistributedOptimizer`.
        legacy_opts: of Keras 2, load optimizers as those of `tf.keras.optimizers.legacy`; the files of TensorFlow 2.11
            and later say by themselves which ones they are.
        options: more options of `DistributedOptimizer`.
    """
    known = {kind.__name__: kind for kind in custom_optimizers or ()} | dict(custom_objects or {})
    model = CHOSEN.load_model(filepath, known, legacy_opts)
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(model.optimizer, compression=compression, **options)
    return model
