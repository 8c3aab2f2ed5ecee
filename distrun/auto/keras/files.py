"""Files that models are saved to: rank 0 writes them, and the others wait until they exist."""

from __future__ import annotations

import functools
from typing import Any

import keras

from distrun.auto.keras.collectives import is_alone, on_one_rank
from distrun.runtime import collectives
from distrun.runtime.world import world


def install() -> None:
    """Change the functions that save models."""
    for owner, names in (
        (keras.Model, ("save", "save_weights", "export")),
        (keras.saving, ("save_model", "save_weights")),
        (keras.models, ("save_model",)),
        (keras.utils, ("plot_model",)),
    ):
        for name in names:
            if hasattr(owner, name):
                setattr(owner, name, _on_rank_zero(getattr(owner, name)))


def _on_rank_zero(plain: Any) -> Any:
    @functools.wraps(plain)
    def save(*args: Any, **options: Any) -> Any:
        if world.rank() > 0 and not is_alone():
            collectives.barrier(name="auto.keras.files")
            return None
        with on_one_rank():  # a save may call another one of these functions
            result = plain(*args, **options)
        if not is_alone():
            collectives.barrier(name="auto.keras.files")
        return result

    return save
