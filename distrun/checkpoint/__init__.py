"""Checkpoints of a training run, in two lines of a script of any framework.

    from distrun.checkpoint import CheckpointManager

    checkpoints = CheckpointManager("runs/a", max_to_keep=3)
    start = checkpoints.restore(model=model, optimizer=optimizer, epoch=0)  # the newest that is whole, on all ranks

    for step in range(start.step, steps):
        ...
        checkpoints.save(step + 1, model=model, optimizer=optimizer, epoch=epoch)  # written beside the training

A checkpoint is a folder of files in the safetensors format: a header in JSON and the bytes of the tensors. Nothing in
it is ever executed, so one that somebody else has written is safe to restore.

The room: `manager` has the public class. `trees` takes what is saved apart, into JSON and tensors, and puts it together
again; `numpy_arrays`, `torch_tensors`, `jax_arrays` and `keras_objects` know what is special to each framework.
`snapshot` copies the tensors at once, and a `writer` writes them later. `parts` are the files, `folder` is which
checkpoints there are, and `ranks` how the ranks of a job talk to each other.
"""

from typing import TYPE_CHECKING

from distrun.checkpoint.manager import CheckpointManager as CheckpointManager
from distrun.exports import exported as _exported

if not TYPE_CHECKING:  # see `distrun.exports`
    __all__ = _exported(globals())
