"""The line of user code that calls a collective, for error messages: frames of JAX and optax are passed over."""

from __future__ import annotations

import os
from pathlib import Path

import jax

from distrun.runtime.operations.call_site import call_site as call_site_outside

_JAX = Path(jax.__file__).parent
_FRAMEWORKS = tuple(f"{_JAX.with_name(name)}{os.sep}" for name in (_JAX.name, "optax"))


def call_site() -> str:
    """The innermost line that is neither ours nor of one of them: `train.py:12 in step`."""
    return call_site_outside(*_FRAMEWORKS)
