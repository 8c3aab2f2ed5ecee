"""GPUs that are given up soon, while ranks may be late as usual: DISTRUN_STALL_TIMEOUT would be for both."""

from __future__ import annotations

import os
from dataclasses import replace

from distrun.runtime.world import world


def give_up_soon() -> None:
    """Let what is on this rank's GPU take GPU_TIMEOUT seconds, if that is set, instead of the stall timeout."""
    if "GPU_TIMEOUT" not in os.environ:
        return
    gpu = world.engine().gpu()
    usual = gpu._config.timeouts
    assert usual.timeout == float(os.environ["DISTRUN_STALL_TIMEOUT"]), usual
    assert gpu._in_flight._timeouts == gpu._communicators._timeouts == usual
    soon = replace(usual, timeout=float(os.environ["GPU_TIMEOUT"]))
    gpu._config = replace(gpu._config, timeouts=soon)
    gpu._in_flight._timeouts = gpu._communicators._timeouts = soon
