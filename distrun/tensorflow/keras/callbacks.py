"""Horovod's other name for `distrun.keras.callbacks`."""

from typing import TYPE_CHECKING

from distrun.keras.callbacks import *

if not TYPE_CHECKING:  # see `distrun.exports`
    from distrun.keras.callbacks import __all__ as __all__
