"""Zero-line mode for Keras 3: `fit` and `train_on_batch` of a plain script train on all ranks of a job.

All ranks run the script and read all of its data. Each computes its rows of every batch (`data`), and the
average of the ranks' gradients is the gradient of the batch (`steps`, `losses`, `optimizers`, `normalization`). The
functions that Keras traces get the rows' range along with the batch (`functions`). Metrics are summed over the ranks
(`metrics`), rank 0 writes the files (`files`, `callbacks`), and all ranks compare data and weights during the training
(`start`). `training` puts it together.
"""

from __future__ import annotations

import os


def install() -> None:
    """Change Keras, right after the script has imported it. The ranks have joined the job."""
    from distrun.auto import job

    if job.current.rehearsing is not None:
        os._exit(0)  # a training by Keras is not rehearsed
    import keras

    from distrun.auto.keras import data, files, losses, metrics, normalization, optimizers, self_distributed, training
    from distrun.keras import library
    from distrun.keras.ranks import init

    init()  # chooses the GPU of this rank
    if not job.current.is_shared:
        return
    data.seed_all(job.current.seed)
    training.install(library.trainer_of(keras), job.current.mode == "scale")
    losses.install()
    metrics.install()
    normalization.install()
    optimizers.watch()
    files.install()
    self_distributed.watch()
