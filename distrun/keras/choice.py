"""The choice between Keras 3 and Keras 2: by the class of an object, or, without an object, as `tf.keras` chooses."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from distrun.errors import UsageError
from distrun.keras.library import Library


def _chosen() -> Library:
    if os.environ.get("TF_USE_LEGACY_KERAS") not in ("1", "true", "True"):  # TensorFlow's own way of reading it
        return _keras3()
    if importlib.util.find_spec("tf_keras") is None:
        raise UsageError(
            f"TF_USE_LEGACY_KERAS={os.environ['TF_USE_LEGACY_KERAS']} asks for Keras 2, and the package tf_keras is "
            "not installed: install the tf_keras that has TensorFlow's version, or unset the variable to use Keras 3"
        )
    return _keras2()


def _keras2() -> Library:
    from distrun.keras import keras2

    return keras2


def _keras3() -> Library:
    from distrun.keras import keras3

    return keras3


def library_of(thing: Any) -> Library | None:
    """Return the Keras whose class `thing` (an optimizer or a model) is an instance of, or None if it is of neither."""
    packages = {kind.__module__.partition(".")[0] for kind in type(thing).__mro__}
    return _keras2() if "tf_keras" in packages else _keras3() if "keras" in packages else None


CHOSEN: Library = _chosen()
"""The Keras behind `tf.keras`: Keras 3, or Keras 2 with TF_USE_LEGACY_KERAS=1."""
