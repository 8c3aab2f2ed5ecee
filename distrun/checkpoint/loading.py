"""Reading the newest complete checkpoint, by all ranks together."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from distrun.checkpoint import file_format, folder
from distrun.checkpoint.folder import NOTES, Checkpoint
from distrun.checkpoint.numpy_arrays import Bytes
from distrun.checkpoint.ranks import Ranks, broadcast_note, gather_notes
from distrun.errors import CheckpointError
from distrun.tensor_fusion.packing import small_as_one

VERSION = 1
"""The version of the notes in a part. A higher version was written by a newer distrun."""
_log = logging.getLogger("distrun")

Read = dict[int, tuple[file_format.Header, dict[str, Bytes]]]
"""The parts that this rank has read, by number."""


def newest(
    run: Path, ranks: Ranks, is_sharded: bool, damaged: set[Checkpoint]
) -> tuple[dict[str, Any], dict[str, Bytes]] | None:
    """Return, on all ranks, the notes and the tensors of the newest complete checkpoint, or None if there is none.

    Damaged ones are skipped. Rank 0 warns of each, and adds it to `damaged`.

    Raises:
        CheckpointError: on all ranks, if one cannot read.
    """
    if is_sharded and ranks.size > 1:
        _check_shared(run, ranks)
    for checkpoint in _finished(run, ranks, damaged):
        owners = [part % ranks.size if is_sharded else 0 for part in range(checkpoint.count)]
        read, damage, failure = _read(checkpoint, [part for part, owner in enumerate(owners) if owner == ranks.rank])
        told = gather_notes(ranks, [damage, failure])
        _raise_first(failure for _, failure in told)
        damages = [damage for damage, _ in told if damage]
        if not damages:
            return _distributed(checkpoint, ranks, owners, read)
        if ranks.rank == 0:
            _skip(checkpoint, damages[0], damaged)
    return None


def _finished(run: Path, ranks: Ranks, damaged: set[Checkpoint]) -> Iterator[Checkpoint]:
    """Yield, on all ranks, the finished checkpoints that rank 0 finds in the folder, newest first."""
    found, failure = [], ""
    if ranks.rank == 0:
        try:
            for each in folder.look(run):
                if each.is_finished and each.damage:
                    _skip(each.checkpoint, each.damage, damaged)
                elif each.is_finished:
                    found.append([each.checkpoint.step, each.checkpoint.attempt, each.checkpoint.count])
        except OSError as error:
            failure = f"the checkpoints in {run} cannot be read: {error.strerror or error}"
    found, failure = broadcast_note(ranks, [found, failure], 0)
    _raise_first([failure])
    for step, attempt, count in found:
        yield Checkpoint(run, step, attempt, count)


def _skip(checkpoint: Checkpoint, damage: str, damaged: set[Checkpoint]) -> None:
    damaged.add(checkpoint)
    _log.warning("the checkpoint of step %d is skipped: %s", checkpoint.step, damage)


def _read(checkpoint: Checkpoint, numbers: list[int]) -> tuple[Read, str, str]:
    """Return the parts with these numbers. The texts say how the first damaged one is damaged, and why the first
    unreadable one cannot be read, and are empty otherwise."""
    read: Read = {}
    for number in numbers:
        try:
            read[number] = file_format.read(checkpoint.part(number))
            version = json.loads(read[number][0].metadata[NOTES])["version"]
            if version > VERSION:
                return {}, "", f"{checkpoint.part(number)} was written by a newer distrun than this: update it"
        except CheckpointError as error:
            return {}, str(error), ""
        except OSError as error:
            return {}, "", f"{checkpoint.part(number)} cannot be read: {error.strerror or error}"
    return read, "", ""


def _distributed(
    checkpoint: Checkpoint, ranks: Ranks, owners: list[int], read: Read
) -> tuple[dict[str, Any], dict[str, Bytes]]:
    """Broadcast each part from the rank that has read it. Returns the notes and the tensors of all parts."""
    notes: dict[str, Any] = {}
    data: dict[str, Bytes] = {}
    for part, owner in enumerate(owners):
        header, tensors = read.pop(part, (None, {}))
        sizes = {name: tensor.size for name, tensor in tensors.items()}
        told, sizes = broadcast_note(ranks, [header and json.loads(header.metadata[NOTES]), sizes], owner)
        notes = notes or told
        arrays = tensors if owner == ranks.rank else {name: np.empty(size, np.uint8) for name, size in sizes.items()}
        if ranks.size > 1:
            flats = [arrays[name] for name in sizes]
            sent, finish = small_as_one(
                flats, owner == ranks.rank, lambda size: np.empty(size, np.uint8), np.concatenate
            )
            for array in sent:
                ranks.broadcast(array, owner)
            finish()
        data |= arrays
    missing = {name for share in notes["shares"] for name in share} - set(data)
    if missing:
        raise CheckpointError(
            f"the checkpoint of step {checkpoint.step} in {checkpoint.run} has no tensor {min(missing)}: the ranks "
            "that wrote it had different tensors, which sharded=False would allow"
        )
    return notes, data


def _check_shared(run: Path, ranks: Ranks) -> None:
    """Make sure that all ranks see what rank 0 writes to the folder `run`.

    Raises:
        CheckpointError: they do not, or rank 0 cannot write.
    """
    probe, failure = run / f".shared-{secrets.token_hex(8)}", ""
    if ranks.rank == 0:
        try:
            run.mkdir(parents=True, exist_ok=True)
            probe.touch()
        except OSError as error:
            failure = f"checkpoints cannot be written to {run}: {error.strerror or error}"
    name, failure = broadcast_note(ranks, [probe.name, failure], 0)
    _raise_first([failure])
    unseen = [rank for rank, sees in enumerate(gather_notes(ranks, (run / name).exists())) if not sees]
    if ranks.rank == 0:
        probe.unlink()
    if unseen:
        raise CheckpointError(
            f"rank {unseen[0]} does not see what rank 0 writes to {run}: sharded=True needs a folder that all hosts "
            "share; leave it out, and rank 0 writes alone"
        )


def _raise_first(failures: Iterator[str] | list[str]) -> None:
    for failure in failures:
        if failure:
            raise CheckpointError(failure)
