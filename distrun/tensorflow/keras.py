"""Horovod's other name for `distrun.keras`: `import distrun.tensorflow.keras as hvd`."""

from distrun.keras import *  # noqa: F403
from distrun.keras import __all__ as __all__
