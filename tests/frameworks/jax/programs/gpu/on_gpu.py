"""Runs programs of the folder above with jitted functions on the simulated GPU: `on_gpu.py training flight`."""

import os
import runpy
import sys
from pathlib import Path

import checking
import playing

import distrun.jax as distrun

distrun.init()
playing.play()
for name in sys.argv[1:]:
    checking._checks.clear()
    runpy.run_path(str(Path(__file__).parents[1] / f"{name}.py"), run_name="__main__")
if os.environ.get("DISTRUN_GPU_BACKEND") != "staged":
    assert any("allReduce" in calls for calls in playing.calls), "nothing has gone through NCCL"
