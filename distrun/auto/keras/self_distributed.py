"""Refusals of scripts that distribute themselves, and of clipping inside a training step.

The former would be distributed twice. The latter would clip the gradients of a part, before the average.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

from distrun.auto.frameworks import after_import
from distrun.auto.keras import steps
from distrun.auto.refusing import refuse

_OWN = ("distrun -np 4 python train.py  # without --auto: the script distributes by itself",)
_CLIPPING = ("optimizer = keras.optimizers.Adam(global_clipnorm=1.0)  # or clipvalue=, not in train_step",)
_STRATEGIES = ("MirroredStrategy", "MultiWorkerMirroredStrategy", "ParameterServerStrategy", "TPUStrategy")


def watch() -> None:
    """Replace the functions and classes that are refused."""
    if hasattr(keras, "distribution"):
        keras.distribution.set_distribution = _refusing("keras.distribution.set_distribution")
    after_import("tensorflow", _watch_tensorflow)
    after_import("torch", _watch_torch)
    after_import("tf_keras", _refuse_keras2)


def _watch_tensorflow(tensorflow: Any) -> None:
    for name in _STRATEGIES:
        getattr(tensorflow.distribute, name).__init__ = _refusing(f"tf.distribute.{name}")
    tensorflow.clip_by_global_norm = _not_in_step(tensorflow.clip_by_global_norm, "tf.clip_by_global_norm")


def _watch_torch(torch: Any) -> None:
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        plain = getattr(torch.nn.utils, name)
        setattr(torch.nn.utils, name, _not_in_step(plain, f"torch.nn.utils.{name}"))


def _refuse_keras2(_: Any) -> None:
    refuse(
        "the script imports tf_keras (Keras 2), which --auto does not know",
        ["import keras  # Keras 3; and no TF_USE_LEGACY_KERAS=1", "# or distrun.keras: see docs/frameworks.md"],
    )


def _refusing(name: str) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        refuse(f"the script distributes by itself, with {name}", _OWN)

    return call


def _not_in_step(plain: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(plain)
    def call(*args: Any, **options: Any) -> Any:
        if steps.current() is not None:
            refuse(
                f"a train_step clips gradients by {name}: they are those of this rank's part, and are averaged only "
                "when the optimizer applies them",
                _CLIPPING,
            )
        return plain(*args, **options)

    return call
