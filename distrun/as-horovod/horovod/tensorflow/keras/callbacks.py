"""Callbacks for `fit`."""

from distrun.keras.callbacks import *
