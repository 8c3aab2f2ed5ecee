"""Ways to distribute that a script uses by itself, which would be distributed twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from distrun.auto.frameworks import after_import
from distrun.auto.refusing import refuse

_OWN = ("distrun -np 4 python train.py  # without --auto: the script distributes by itself",)
_STRATEGIES = ("MirroredStrategy", "MultiWorkerMirroredStrategy", "ParameterServerStrategy", "TPUStrategy")


def watch() -> None:
    """Refuse them from now on."""
    if hasattr(keras, "distribution"):
        keras.distribution.set_distribution = _refusing("keras.distribution.set_distribution")
    after_import("tensorflow", _watch_tensorflow)
    after_import("tf_keras", _refuse_keras2)


def _watch_tensorflow(tensorflow: Any) -> None:
    for name in _STRATEGIES:
        getattr(tensorflow.distribute, name).__init__ = _refusing(f"tf.distribute.{name}")


def _refuse_keras2(_: Any) -> None:
    refuse(
        "the script imports tf_keras (Keras 2), which --auto does not know",
        ["import keras  # Keras 3; and no TF_USE_LEGACY_KERAS=1", "# or distrun.keras: see docs/frameworks.md"],
    )


def _refusing(name: str) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        refuse(f"the script distributes by itself, with {name}", _OWN)

    return call
