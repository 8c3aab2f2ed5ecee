"""Runs programs of the folder above with all their tensors on the GPU: `on_gpu.py training residuals:FOLDER`.

That is the simulated one or, if the first argument is `real`, this rank's own. Behind a colon is a program's argument.
"""

import runpy
import sys
from pathlib import Path

import checking
import playing
import torch

import distrun.torch as hvd

_, *names = sys.argv
hvd.init()
if names[0] == "real":
    torch.set_default_device(f"cuda:{torch.cuda.current_device()}")  # ranks may share one
    names = names[1:]
else:
    playing.play()
for name in names:
    checking._checks.clear()
    program, *sys.argv[1:] = name.split(":")
    runpy.run_path(str(Path(__file__).parents[1] / f"{program}.py"), run_name="__main__")
