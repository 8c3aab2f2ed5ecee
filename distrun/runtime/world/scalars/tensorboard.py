"""Writing figures where a script writes for TensorBoard: torch's or tensorboardX's SummaryWriter, Keras's callback."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from distrun.runtime.world.scalars.instances import Instances

FOLDER = "distrun"
"""The subfolder in the folder of Keras's callback, next to `train` and `validation`."""


class SummaryWriters:
    """The last SummaryWriter that the script has created and not closed."""

    title = "TensorBoard"

    def __init__(self) -> None:
        self._instances = Instances(
            ("torch.utils.tensorboard.writer", "SummaryWriter"), ("tensorboardX.writer", "SummaryWriter")
        )

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Write figures, if there is a place for them."""
        is_open = (one for one in reversed(self._instances.all()) if getattr(one, "file_writer", None) is not None)
        writer = next(is_open, None)
        if writer is not None:
            for name, value in figures.items():
                writer.add_scalar(name, value, step)
            writer.flush()


class KerasCallbacks:
    """The last `TensorBoard` callback that the script has created and used in `fit`."""

    title = "TensorBoard"

    def __init__(self) -> None:
        self._instances = Instances(
            ("keras.src.callbacks.tensorboard", "TensorBoard"), ("tf_keras.src.callbacks", "TensorBoard")
        )
        self._folder = ""
        self._writer: Any = None

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Write figures, if there is a place for them."""
        fitted = [one for one in self._instances.all() if getattr(one, "_train_dir", None)]
        if not fitted:
            return
        import tensorflow as tf

        folder = os.path.join(fitted[-1].log_dir, FOLDER)
        if folder != self._folder:
            self._folder, self._writer = folder, tf.summary.create_file_writer(folder)
        with self._writer.as_default():
            for name, value in figures.items():
                tf.summary.scalar(name, value, step=step)
        self._writer.flush()
