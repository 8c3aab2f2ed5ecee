"""Saving and restoring in one process, and on disks that refuse."""

from __future__ import annotations

import os
import re
import threading

import numpy as np
import pytest

import distrun.checkpoint.manager as manager_module
from distrun.checkpoint import CheckpointManager
from distrun.errors import CheckpointError, UsageError

DEADLINE = 60.0


@pytest.fixture
def gate(monkeypatch):
    """Holds back what the writer writes until it is set."""
    opened = threading.Event()
    write = manager_module.file_format.write

    def held(*arguments):
        assert opened.wait(DEADLINE)
        write(*arguments)

    monkeypatch.setattr(manager_module.file_format, "write", held)
    yield opened
    opened.set()


def test_without_a_checkpoint_what_was_given_comes_back(tmp_path):
    start = CheckpointManager(tmp_path / "run").restore(weights=[1], epoch=0)
    assert (start.step, start.weights, start.epoch) == (0, [1], 0)
    assert CheckpointManager(tmp_path).restore(step=-1).step == -1
    assert not (tmp_path / "run").exists()


def test_the_newest_comes_back_and_three_stay(tmp_path):
    with CheckpointManager(tmp_path) as checkpoints:
        for step in range(5):
            checkpoints.save(step, epoch=step, note="x")
    start = CheckpointManager(tmp_path).restore(epoch=None)
    assert (start.step, start.epoch) == (4, 4)
    assert not hasattr(start, "note")
    assert sorted(re.match(r"step-(\d)-", each.name)[1] for each in tmp_path.iterdir()) == ["2", "3", "4"]


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, gate):
    weights = np.zeros(3)
    checkpoints = CheckpointManager(tmp_path)
    checkpoints.save(1, weights=weights)
    weights += 1  # not in the checkpoint
    assert CheckpointManager(tmp_path).restore().step == 0
    gate.set()
    checkpoints.wait()
    assert CheckpointManager(tmp_path).restore(weights=None).weights.tolist() == [0, 0, 0]
    checkpoints.close()


def test_a_step_may_be_saved_again(tmp_path):
    with CheckpointManager(tmp_path) as checkpoints:
        for value in range(3):
            checkpoints.save(7, value=value)
            checkpoints.wait()
            assert CheckpointManager(tmp_path).restore(value=None).value == value
    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save(7, value=3)
    assert CheckpointManager(tmp_path).restore(value=None).value == 3


def test_a_run_that_goes_back_keeps_its_own_checkpoints(tmp_path):
    with CheckpointManager(tmp_path, max_to_keep=1) as checkpoints:
        checkpoints.save(100, value="old")
        checkpoints.save(50, value="new")
    assert CheckpointManager(tmp_path).restore(value=None).value == "new"


def test_damaged_checkpoints_are_skipped_each_with_one_warning(tmp_path, caplog):
    with CheckpointManager(tmp_path, max_to_keep=4) as checkpoints:
        for step in range(1, 5):
            checkpoints.save(step, weights=np.full(100, step))
    three, four = (next(tmp_path.glob(f"step-{step}-*/*")) for step in (3, 4))
    three.write_bytes(three.read_bytes()[:-1])
    data = bytearray(four.read_bytes())
    data[-1] ^= 1
    four.write_bytes(data)
    checkpoints = CheckpointManager(tmp_path, max_to_keep=1)
    assert checkpoints.restore(weights=None).weights[0] == 2
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 2
    assert re.fullmatch(
        r"the checkpoint of step 3 is skipped: .*part-0-of-1.safetensors is damaged: it has .*", warnings[0]
    )
    assert re.fullmatch(r"the checkpoint of step 4 is skipped: .* is damaged: its checksum is .*", warnings[1])
    with checkpoints:  # the damaged ones are no reason to delete the last that is whole
        checkpoints.save(3, weights=np.full(100, 3))
    assert CheckpointManager(tmp_path).restore(weights=None).weights[0] == 3
    assert len(list(tmp_path.iterdir())) == 1


def test_a_name_that_was_not_saved_is_refused(tmp_path):
    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save(3, model=1, epoch=2)
    with pytest.raises(
        UsageError, match=r"^the checkpoint of step 3 in .* has no 'ema', only model, epoch: restore what"
    ):
        checkpoints.restore(model=1, ema=2)


@pytest.mark.parametrize("step", [-1, 1.5, "3", True, None])
def test_an_impossible_step_is_refused(tmp_path, step):
    with pytest.raises(UsageError, match=rf"^save: step={step!r} is not a whole number >= 0$"):
        CheckpointManager(tmp_path).save(step)


@pytest.mark.parametrize("keep", [0, -1, 1.5, True, "3"])
def test_an_impossible_number_to_keep_is_refused(tmp_path, keep):
    with pytest.raises(UsageError, match=rf"^max_to_keep={keep!r}: it is a whole number from 1, or None"):
        CheckpointManager(tmp_path, max_to_keep=keep)


def test_one_of_several_ranks_that_has_not_joined_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(
        UsageError, match=r"^this is one of 4 ranks, which cannot agree on a checkpoint yet: call distrun"
    ):
        CheckpointManager(tmp_path).restore()


# Failures of the disk -------------------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    checkpoints = CheckpointManager(tmp_path / "file" / "run")
    with pytest.raises(
        CheckpointError, match=r"^the checkpoint of step 1 could not be written to .*run: Not a directory"
    ):
        checkpoints.save(1, value=1)


def test_a_failed_write_is_raised_once_by_the_next_call_and_the_former_stays(tmp_path, monkeypatch):
    checkpoints = CheckpointManager(tmp_path, max_to_keep=1)
    checkpoints.save(1, value=1)
    checkpoints.wait()

    def fail(*arguments):
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(manager_module.file_format, "write", fail)
        checkpoints.save(2, value=2)
        with pytest.raises(
            CheckpointError,
            match=r"^the checkpoint of step 2 could not be written to .*: No space left on device; those before it",
        ):
            checkpoints.save(3, value=3)
        checkpoints.save(4, value=4)
        with pytest.raises(CheckpointError, match="of step 4"):
            checkpoints.close()
    assert CheckpointManager(tmp_path).restore(value=None).value == 1
    checkpoints.save(5, value=5)
    checkpoints.close()
    assert CheckpointManager(tmp_path).restore(value=None).value == 5
