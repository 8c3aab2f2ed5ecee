"""Horovod's other name for `distrun.keras`: `import distrun.tensorflow.keras as hvd`.

Collectives return tensors of TensorFlow where it runs eagerly.
"""

from typing import TYPE_CHECKING

from distrun.keras import *
from distrun.keras.values.tensors import *

if not TYPE_CHECKING:  # see `distrun.exports`
    from distrun.keras import __all__ as __all__


def __getattr__(name: str) -> object:
    from distrun import keras

    return getattr(keras, name)
