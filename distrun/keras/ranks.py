"""Joining the job."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from distrun.keras.choice import CHOSEN
from distrun.runtime.collectives import initialisation


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the job, with the arguments of `distrun.init`. If there are GPUs, the Keras backend will use this rank's.

    Call it before TensorFlow or JAX compute anything: after that, their choice of GPU is fixed.
    """
    initialisation.init(comm, process_sets)
    if CHOSEN.BACKEND == "tensorflow":
        from distrun.graphs.tensorflow import binding

        binding.bind()
        binding.keep_files_apart()
    elif CHOSEN.BACKEND in ("jax", "torch"):
        import_module(f"distrun.{CHOSEN.BACKEND}").init()
