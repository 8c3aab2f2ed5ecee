"""Zero-line mode for Keras 3: `fit` and `train_on_batch` of a plain script train on all ranks of a job.

All ranks run the script and read all of its data. Of each batch they compute their rows (`parts`, `data`), and the
average of their gradients is the gradient of the batch (`steps`, `losses`, `optimizers`, `normalization`); the
functions that Keras traces are told which rows they have (`functions`). Metrics are added up (`metrics`), files are
written by rank 0 (`files`, `callbacks`), and all ranks compare data and weights as they go (`start`). `training` puts
it together.
"""

from __future__ import annotations

import os


def install() -> None:
    """Change Keras, which the script has just imported. The ranks have joined the job."""
    from distrun.auto import job, randomness

    if job.current.rehearsing is not None:
        os._exit(0)  # what Keras trains is not rehearsed
    import keras

    from distrun.auto.keras import data, files, losses, metrics, normalization, optimizers, refused, training
    from distrun.keras import library
    from distrun.keras.ranks import init

    init()  # the GPU of this rank
    if not job.current.is_shared:
        return
    data.seed_all(randomness.common_seed())
    training.install(library.trainer_of(keras), job.current.mode == "scale")
    losses.install()
    metrics.install()
    normalization.install()
    optimizers.watch()
    files.install()
    refused.watch()
