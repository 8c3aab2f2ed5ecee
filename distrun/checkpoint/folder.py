"""The folder of a run: which checkpoints it has, which of them are whole, and which of them go.

    runs/a/step-120-5f3ac01e/part-0-of-2.safetensors
                             part-1-of-2.safetensors

The number after the step tells attempts to save the same step apart: ranks that were started again must not complete
what others had begun. A checkpoint is finished when all of its parts are there, since each appears when it is whole.
Nobody has to be asked, so ranks need not wait for each other to write theirs.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from distrun.checkpoint import parts
from distrun.errors import CheckpointError

NOTES = "distrun"
"""Where our own notes are in the metadata of a part: `serial` in part 0, counted up with each checkpoint, is what tells
which is the newest. (Steps may begin again, and clocks of hosts differ.)"""
_log = logging.getLogger("distrun")
_FOLDER = re.compile(r"step-(?P<step>\d+)-(?P<attempt>[0-9a-f]{8})")
_PART = re.compile(r"part-(?P<part>\d+)-of-(?P<count>\d+)\.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in the folder of a run, finished or not."""

    run: Path
    step: int
    attempt: str
    count: int
    """The number of its parts."""

    @property
    def folder(self) -> Path:
        """Its own folder."""
        return self.run / f"step-{self.step}-{self.attempt}"

    def part(self, number: int) -> Path:
        """Return the path of a part."""
        return self.folder / f"part-{number}-of-{self.count}.safetensors"


@dataclass(frozen=True)
class Found:
    """A checkpoint, and what a look at it says."""

    checkpoint: Checkpoint
    is_finished: bool
    """Whether all parts are there."""
    serial: int = 0
    """Its place among all; 0 if part 0 does not tell."""
    damage: str = ""
    """The first part that cannot be whole, by its size or its header."""


def look(run: Path) -> list[Found]:
    """Return all checkpoints of a folder, the newest first and those with unknown serials before them.

    Raises:
        OSError: the folder cannot be read.
    """
    found = [_examined(each) for each in sorted(_all(run), key=lambda each: (each.step, each.attempt))]
    return sorted(found, key=lambda each: (each.serial == 0, each.serial), reverse=True)


def _all(run: Path) -> Iterable[Checkpoint]:
    for folder in run.iterdir() if run.is_dir() else ():
        if (named := _FOLDER.fullmatch(folder.name)) and folder.is_dir():
            try:
                counts = {int(part["count"]) for each in folder.iterdir() if (part := _PART.fullmatch(each.name))}
            except FileNotFoundError:
                continue  # another rank has just deleted it
            for count in counts or {0}:
                yield Checkpoint(run, int(named["step"]), named["attempt"], count)


def _examined(checkpoint: Checkpoint) -> Found:
    numbers = [number for number in range(checkpoint.count) if checkpoint.part(number).exists()]
    is_finished = 0 < checkpoint.count == len(numbers)
    serial, damage = 0, ""
    for number in numbers:
        try:
            header = parts.read_header(checkpoint.part(number))
            if number == 0:
                serial = int(json.loads(header.metadata[NOTES])["serial"])
        except (CheckpointError, OSError, ValueError, KeyError, TypeError) as error:
            damage = damage or str(error)
    return Found(checkpoint, is_finished, serial, damage)


def prune(run: Path, keep: int | None, attempt: str, damaged: set[Checkpoint]) -> None:
    """Delete what is not among the newest `keep` checkpoints that are whole; None: all that are whole stay.

    What is not whole goes when a checkpoint of the present attempt is, which all ranks have written: then nobody
    writes for an earlier attempt any more, nor for an older checkpoint of this one. The last that is whole never goes.

    Args:
        run: the folder of the run.
        keep: at least 1.
        attempt: the present attempt.
        damaged: those whose checksums have been found wrong.
    """
    found = look(run)
    whole = [each for each in found if each.is_finished and not each.damage and each.checkpoint not in damaged]
    gone = whole[keep:] if keep is not None else []
    if whole and whole[0].checkpoint.attempt == attempt:
        for each in found:
            is_past = each.checkpoint.attempt != attempt or 0 < each.serial < whole[0].serial
            if each not in whole and is_past:
                gone.append(each)
    for each in gone:
        _delete(each.checkpoint)


def _delete(checkpoint: Checkpoint) -> None:
    try:
        if checkpoint.count:
            checkpoint.part(0).unlink(missing_ok=True)  # from here on it is not finished, whatever happens
        for path in checkpoint.folder.iterdir():
            path.unlink(missing_ok=True)
        checkpoint.folder.rmdir()
    except FileNotFoundError:
        pass  # another rank deletes it too
    except OSError as error:
        _log.warning("the old checkpoint %s cannot be deleted: %s", checkpoint.folder, error.strerror or error)
