"""Saves or restores a state on all ranks: `checkpoint.py FOLDER rank0|sharded save|restore|faults|apart|unreadable`."""

import logging
import os
import sys
from pathlib import Path

import numpy as np
from refusals import refuse

import distrun
from distrun.checkpoint import CheckpointManager
from distrun.errors import CheckpointError

FOLDER, MODE, WHAT = sys.argv[1:]
SHARDED = MODE == "sharded"

distrun.init()
RANK, SIZE = distrun.rank(), distrun.size()


def state(step: int) -> dict[str, object]:
    """Return the state after `step` steps; its tensors are of all sizes."""
    sizes = [0, 1, 3, 1000, 70_000, 600_000, 1_500_000]
    tensors = {f"t{size}": np.arange(size, dtype=np.float32) + step for size in sizes}
    return {"tensors": tensors, "many": [np.full(50, step + i) for i in range(40)], "epoch": step, "rank": RANK}


def check(start, step: int) -> None:
    """Make sure that this rank has what was saved."""
    expected = state(step)
    assert start.step == start.epoch == step, (start.step, start.epoch)
    assert start.rank == 0  # numbers are rank 0's
    for name, array in expected["tensors"].items():
        assert np.array_equal(start.tensors[name], array), name
    for one, other in zip(start.many, expected["many"], strict=True):
        assert np.array_equal(one, other)
    assert list(start.tensors) == list(expected["tensors"])


def restored(checkpoints: CheckpointManager):
    return checkpoints.restore(tensors=None, many=None, epoch=0, rank=0)


def save() -> None:
    with CheckpointManager(FOLDER, max_to_keep=2, sharded=SHARDED) as checkpoints:
        assert restored(checkpoints).step == 0
        for step in range(1, 5):
            checkpoints.save(step, **state(step))
        checkpoints.wait()
        distrun.barrier()
        check(restored(checkpoints), 4)
    if RANK == 0:
        whole = [folder for folder in Path(FOLDER).iterdir() if len(list(folder.iterdir())) == (SIZE if SHARDED else 1)]
        assert len(whole) == 2, whole
        if SHARDED:
            sizes = [path.stat().st_size for path in whole[0].iterdir()]
            assert max(sizes) < 6_100_000  # the largest tensor, and not all 8.7 MB
    distrun.barrier()


def restore() -> None:
    check(restored(CheckpointManager(FOLDER, sharded=SHARDED)), 4)
    check(restored(CheckpointManager(FOLDER)), 4)  # either is read by rank 0 alone, too


def faults() -> None:
    """Part by part, the newest is damaged: all ranks get the one before, and rank 0 warns."""
    with CheckpointManager(FOLDER, max_to_keep=None, sharded=SHARDED) as checkpoints:
        for step in range(1, 4):
            checkpoints.save(step, **state(step))
    distrun.barrier()
    warnings: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("distrun").addHandler(handler)
    for step, part in ((3, SIZE - 1 if SHARDED else 0), (2, 0)):
        if RANK == 0:
            path = next(Path(FOLDER).glob(f"step-{step}-*/part-{part}-of-*"))
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 4
            path.write_bytes(data)
        distrun.barrier()
        checkpoints = CheckpointManager(FOLDER, sharded=SHARDED)
        check(restored(checkpoints), step - 1)
        assert len(warnings) == (4 - step if RANK == 0 else 0), warnings
        assert all("is skipped: " in warning for warning in warnings)
        warnings.clear()
    if SHARDED and RANK == 0:  # a part that is not there is no damage: it was never finished
        next(Path(FOLDER).glob(f"step-1-*/part-{SIZE - 1}-of-*")).unlink()
    distrun.barrier()
    assert restored(CheckpointManager(FOLDER, sharded=SHARDED)).step == (0 if SHARDED else 1)
    distrun.barrier()
    logging.getLogger("distrun").removeHandler(handler)


def apart() -> None:
    """Each rank has a folder of its own, as on hosts that share none."""
    own = os.path.join(FOLDER, str(RANK))
    if SHARDED:
        text = f"does not see what rank 0 writes to {own}: sharded=True needs a folder that all hosts share"
        refuse(CheckpointError, text, CheckpointManager(own, sharded=True).restore)
        return
    with CheckpointManager(own) as checkpoints:
        checkpoints.save(4, **state(4))
    check(restored(CheckpointManager(own)), 4)
    assert Path(own).exists() is (RANK == 0)


def unreadable() -> None:
    """An error of one rank is one of all."""
    if RANK == 0:
        Path(FOLDER, "file").touch()
    distrun.barrier()
    checkpoints = CheckpointManager(os.path.join(FOLDER, "file", "run"), sharded=SHARDED)
    if SHARDED:
        refuse(CheckpointError, "checkpoints cannot be written to", checkpoints.restore)
    else:
        assert checkpoints.restore().step == 0
    distrun.barrier()


{"save": save, "restore": restore, "faults": faults, "apart": apart, "unreadable": unreadable}[WHAT]()
