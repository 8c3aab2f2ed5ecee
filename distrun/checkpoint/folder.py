"""The folder of a run: the checkpoints in it, which of them are complete, and which of them are deleted.

    runs/a/step-120-5f3ac01e/part-0-of-2.safetensors
                             part-1-of-2.safetensors

The number after the step tells attempts to save the same step apart: ranks that were started again must not complete
what others had begun. A part appears under its name only when all of it is written, so a checkpoint is finished when
all of its parts exist. This needs no communication, and ranks do not wait for each other to write their parts.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from distrun.checkpoint import file_format
from distrun.errors import CheckpointError

NOTES = "distrun"
"""The key of distrun's own notes in the metadata of a part. `serial` in part 0 is counted up with each checkpoint, and
tells which one is the newest. (Steps may begin again, and clocks of hosts differ.)"""
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
    """A checkpoint, and what its files tell."""

    checkpoint: Checkpoint
    is_finished: bool
    """Whether all parts exist."""
    serial: int = 0
    """Its place in the order of all checkpoints, or 0 if part 0 cannot be read."""
    damage: str = ""
    """Why the first damaged part cannot be complete, by its size or its header."""


def look(run: Path) -> list[Found]:
    """Return all checkpoints of the folder `run`: first those without a known serial, then the others, newest first.

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
            header = file_format.read_header(checkpoint.part(number))
            if number == 0:
                serial = int(json.loads(header.metadata[NOTES])["serial"])
        except (CheckpointError, OSError, ValueError, KeyError, TypeError) as error:
            damage = damage or str(error)
    return Found(checkpoint, is_finished, serial, damage)


def prune(run: Path, keep: int | None, attempt: str, damaged: set[Checkpoint]) -> None:
    """Delete all but the newest `keep` complete checkpoints. None keeps all complete ones.

    Incomplete ones are deleted once a checkpoint of the present attempt is complete: all ranks have written it, so no
    rank still writes for an earlier attempt, or for an older checkpoint of this one. The last complete checkpoint is
    never deleted.

    Args:
        run: the folder of the run.
        keep: at least 1.
        attempt: the present attempt.
        damaged: checkpoints whose checksums were found to be wrong.
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
            checkpoint.part(0).unlink(missing_ok=True)  # first: now it counts as unfinished, even if the rest fails
        for path in checkpoint.folder.iterdir():
            path.unlink(missing_ok=True)
        checkpoint.folder.rmdir()
    except FileNotFoundError:
        pass  # another rank deletes it too
    except OSError as error:
        _log.warning("the old checkpoint %s cannot be deleted: %s", checkpoint.folder, error.strerror or error)
