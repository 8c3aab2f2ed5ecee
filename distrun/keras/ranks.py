"""Joining the job."""

from __future__ import annotations

from typing import Any

from distrun.keras.choice import CHOSEN
from distrun.runtime.collectives import initialisation


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the job, with the arguments of `distrun.init`. If there are GPUs, the Keras backend will use this rank's.

    Call it before TensorFlow or JAX compute anything: after that, their choice of GPU is fixed.
    """
    initialisation.init(comm, process_sets)
    backend = CHOSEN.BACKEND
    if backend == "tensorflow":
        from distrun.graphs.tensorflow import binding

        binding.bind()
        binding.keep_files_apart()
    elif backend == "jax":
        import distrun.jax

        distrun.jax.init()
    elif backend == "torch":
        import distrun.torch

        distrun.torch.init()
