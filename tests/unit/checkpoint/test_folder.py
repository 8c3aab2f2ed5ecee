"""Which checkpoints a folder has, and which of them stay."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from hypothesis import given, strategies as st

from distrun.checkpoint import file_format, folder

NOTES = folder.NOTES
OURS, OTHER = "0" * 8, "f" * 8


def save(run, step, serial, attempt=OURS, count=1, only=None):
    """Make a checkpoint, or only some of its parts."""
    checkpoint = folder.Checkpoint(run, step, attempt, count)
    checkpoint.folder.mkdir(parents=True, exist_ok=True)
    for part in range(count) if only is None else only:
        notes = {"serial": serial} if part == 0 else {}
        file_format.write(checkpoint.part(part), {NOTES: json.dumps(notes)}, [], np.empty(0, np.uint8))
    return checkpoint


def steps(run):
    """The steps of the checkpoints that are there, newest first."""
    return [each.checkpoint.step for each in folder.look(run)]


def test_no_folder_has_no_checkpoints(tmp_path):
    assert folder.look(tmp_path / "none") == []


def test_one_that_another_rank_deletes_meanwhile_is_none(tmp_path, monkeypatch):
    save(tmp_path, 1, serial=1)
    save(tmp_path, 2, serial=2)
    is_dir = Path.is_dir

    def deleted_then(path):
        found = is_dir(path)
        if path.name.startswith("step-1-"):
            shutil.rmtree(path)
        return found

    monkeypatch.setattr(Path, "is_dir", deleted_then)
    assert steps(tmp_path) == [2]


def test_the_newest_is_the_one_written_last_whatever_its_step(tmp_path):
    save(tmp_path, 9, 1)
    save(tmp_path, 10, 2)
    save(tmp_path, 5, 3)
    assert steps(tmp_path) == [5, 10, 9]


def test_other_things_in_the_folder_are_left_alone(tmp_path):
    (tmp_path / "step-1-zz").mkdir()
    (tmp_path / "step-1-00000000").touch()
    (tmp_path / "notes.txt").touch()
    save(tmp_path, 3, 1)
    folder.prune(tmp_path, 1, OURS, set())
    assert steps(tmp_path) == [3]
    assert len(list(tmp_path.iterdir())) == 4


def test_a_checkpoint_is_finished_when_all_parts_are_there(tmp_path):
    save(tmp_path, 1, 1, count=3)
    save(tmp_path, 2, 2, count=3, only=[0, 2])
    save(tmp_path, 3, 0, count=3, only=[1])
    (tmp_path / f"step-4-{OURS}").mkdir()
    assert {each.checkpoint.step: each.is_finished for each in folder.look(tmp_path)} == {
        1: True,
        2: False,
        3: False,
        4: False,
    }


def test_a_part_that_is_too_short_is_damage(tmp_path):
    path = save(tmp_path, 1, 1, count=2).part(1)
    path.write_bytes(path.read_bytes()[:-1])
    (found,) = folder.look(tmp_path)
    assert found.is_finished
    assert "part-1-of-2.safetensors is damaged" in found.damage


@given(st.lists(st.sampled_from(["whole", "damaged", "unfinished"]), max_size=8), st.integers(1, 3))
def test_the_newest_that_are_whole_stay(tmp_path_factory, kinds, keep):
    run = tmp_path_factory.mktemp("run")
    whole = []
    for serial, kind in enumerate(kinds, start=1):
        checkpoint = save(run, serial, serial, count=2, only=[0] if kind == "unfinished" else None)
        if kind == "damaged":
            checkpoint.part(0).write_bytes(b"x")
        elif kind == "whole":
            whole.append(serial)
    folder.prune(run, keep, OURS, set())
    left = steps(run)
    assert [step for step in left if step in whole] == whole[::-1][:keep]


def test_what_is_known_to_be_damaged_is_not_counted(tmp_path):
    damaged = save(tmp_path, 2, 2)
    save(tmp_path, 1, 1)
    folder.prune(tmp_path, 1, OURS, {damaged})
    assert steps(tmp_path) == [2, 1]
    save(tmp_path, 3, 3)
    folder.prune(tmp_path, 1, OURS, {damaged})
    assert steps(tmp_path) == [3]


def test_what_others_have_begun_goes_when_a_checkpoint_of_ours_is_whole(tmp_path):
    save(tmp_path, 7, 0, OTHER, count=2, only=[1])
    save(tmp_path, 6, 6, OTHER, count=2)
    folder.prune(tmp_path, 3, OURS, set())
    assert steps(tmp_path) == [7, 6]
    save(tmp_path, 8, 0, OURS, count=2, only=[1])  # a faster rank has begun the next
    save(tmp_path, 7, 7, OURS, count=2)
    folder.prune(tmp_path, 3, OURS, set())
    assert {(each.checkpoint.step, each.checkpoint.attempt) for each in folder.look(tmp_path)} == {
        (6, OTHER),
        (7, OURS),
        (8, OURS),
    }


def test_all_stay_without_a_limit(tmp_path):
    for serial in range(1, 6):
        save(tmp_path, serial, serial)
    folder.prune(tmp_path, None, OURS, set())
    assert len(steps(tmp_path)) == 5


def test_what_cannot_be_deleted_is_told_and_fails_nothing(tmp_path, monkeypatch, caplog):
    for serial in range(1, 3):
        save(tmp_path, serial, serial)

    def refuse(path, missing_ok=False):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(type(tmp_path), "unlink", refuse)
    folder.prune(tmp_path, 1, OURS, set())
    assert "cannot be deleted: Read-only file system" in caplog.text
