"""Checkpoints of a training run, in two lines of a script of any framework.

    from distrun.checkpoint import CheckpointManager

    checkpoints = CheckpointManager("runs/a", max_to_keep=3)
    start = checkpoints.restore(model=model, optimizer=optimizer, epoch=0)  # the newest complete one, on all ranks

    for step in range(start.step, steps):
        ...
        checkpoints.save(step + 1, model=model, optimizer=optimizer, epoch=epoch)  # written in the background

A checkpoint is a folder of files in the safetensors format: a header in JSON and the bytes of the tensors. Nothing in
it is ever executed, so a checkpoint from somebody else is safe to restore.

The room: `manager` has the public class. `trees` turns values into JSON and tensors, and back. `numpy_arrays`,
`torch_tensors`, `jax_arrays` and `keras_objects` know what is special to each framework. `snapshot` copies the tensors
at once, and a `background` thread writes them later. `file_format` reads and writes the files with their manifests (the
safetensors headers), `folder` lists the checkpoints of a run, and `loading` reads the newest one. `ranks` is how the
ranks of a job communicate.
"""

from typing import TYPE_CHECKING

from distrun.checkpoint.manager import CheckpointManager as CheckpointManager
from distrun.exports import exported as _exported

if not TYPE_CHECKING:  # see `distrun.exports`
    __all__ = _exported(globals())
