"""The binding of TensorFlow to this rank: to its GPU, and to its folder in an elastic job."""

from __future__ import annotations

import logging
import tempfile
import types
from contextlib import suppress
from functools import partial

import tensorflow as tf

from distrun.runtime.world import world
from distrun.runtime.world.devices import Cuda


def bind() -> None:
    """Let TensorFlow see this rank's GPU only, as GPU:0. If ranks share it, let its memory use grow as needed.

    A choice of GPUs that the script has made before is kept, and the script may make one afterwards, as scripts for
    Horovod do. If TensorFlow already uses all GPUs, the binding is too late, and a warning names the remedy.
    """
    device = world.device()
    if not isinstance(device, Cuda):
        return
    gpus = tf.config.list_physical_devices("GPU")
    if device.index >= len(gpus) or tf.config.get_visible_devices("GPU") != gpus:
        return  # a TensorFlow without CUDA, or the script has chosen
    own = gpus[device.index]
    try:
        tf.config.set_visible_devices(own, "GPU")
        if device.sharers > 1 and tf.config.experimental.get_memory_growth(own) is None:
            tf.config.experimental.set_memory_growth(own, True)
    except RuntimeError as error:
        logging.getLogger("distrun").warning(
            "TensorFlow uses this host's GPUs already (%s), so this rank takes memory of GPUs that belong to other "
            "ranks: call init() before anything makes TensorFlow compute",
            error,
        )


def keep_files_apart() -> None:
    """In an elastic job, make TensorFlow write the Python files that it generates to a folder of the agent's.

    TensorFlow generates them when it traces functions, and deletes them at the end of the process. The agent deletes
    them if the process is killed.
    """
    if not world.is_elastic():
        return
    from distrun.contract.elastic import scratch

    folder = scratch.folder()
    if folder is None:
        return
    with suppress(ImportError):
        from tensorflow.python.autograph.pyct import loader

        module = types.ModuleType("tempfile")  # TensorFlow's loader has no argument for the folder
        module.__dict__.update(vars(tempfile), NamedTemporaryFile=partial(tempfile.NamedTemporaryFile, dir=folder))
        loader.tempfile = module
