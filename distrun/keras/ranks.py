"""Joining the job."""

from __future__ import annotations

import keras

from distrun.runtime import world


def init() -> None:
    """Join the job: see `distrun.init`. Where there are GPUs, Keras's backend will use the one of this rank.

    Call it before TensorFlow or JAX compute anything: after that they can no longer be told which GPU to use.
    """
    world.init()
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from distrun.graphs.tensorflow import binding

        binding.bind()
    elif backend == "jax":
        import distrun.jax

        distrun.jax.init()
    elif backend == "torch":
        import distrun.torch

        distrun.torch.init()
