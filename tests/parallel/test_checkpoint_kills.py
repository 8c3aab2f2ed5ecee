"""Ranks that are killed while they save, one or all of them, in either format, at moments of chance."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from distrun.checkpoint import CheckpointManager

DEADLINE = 240.0  # seconds; far more than anything takes, so that a busy machine fails no test
FOREIGN = ("notes.txt", "step-1-mine/part-0-of-1.safetensors", "best/.part-0-of-1.safetensors.01234567.tmp")
"""Files of others in the folder of the run, with names much like ours."""
TRAIN = """
import os, sys
import numpy as np
import distrun
from distrun.checkpoint import CheckpointManager

folder, mode, finish = sys.argv[1:]
distrun.init()
checkpoints = CheckpointManager(folder, max_to_keep=2, sharded=mode == "sharded")
start = checkpoints.restore(**{name: np.zeros(200_000, np.int64) for name in "abcd"})
weights = {name: getattr(start, name) for name in "abcd"}
values = {int(value) for array in weights.values() for value in np.unique(array)}
assert values == {start.step}, (values, start.step)
step = start.step
print(f"START {os.getpid()} {distrun.rank()} {step};", flush=True)
while not distrun.broadcast_object(os.path.exists(finish)):  # all are here: what they saved before this is on the disk
    for array in weights.values():
        array += 1
    step += 1
    checkpoints.save(step, **weights)
    distrun.barrier()
    if distrun.rank() == 0:
        print(f"SAVED {step - 1};", flush=True)
checkpoints.close()
"""


class Job:
    """Two ranks that start again whenever one is killed, and what they print."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "distrun.runner", "-np", "2", "--max-restarts", "1000", "--spares", "2"]
        self.popen = subprocess.Popen(
            [*command, sys.executable, "-c", TRAIN, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.starts: list[tuple[int, int, int]] = []
        """The process id, rank and first step of each process that has restored."""
        self.saved = 0
        """The newest step whose checkpoint is known to be whole."""
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._has_ended = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            with self._changed:
                self.lines.append(line)
                for pid, rank, step in re.findall(r"START (\d+) (\d+) (\d+);", line):
                    self.starts.append((int(pid), int(rank), int(step)))
                for step in re.findall(r"SAVED (\d+);", line):
                    self.saved = max(self.saved, int(step))
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def await_ranks(self, round_: int) -> list[int]:
        """Wait until the ranks of a round have restored what is whole; return their process ids."""
        self._await(lambda: len(self.starts) >= 2 * round_ + 2)
        pair = self.starts[2 * round_ : 2 * round_ + 2]
        assert sorted(rank for _, rank, _ in pair) == [0, 1]
        assert pair[0][2] == pair[1][2]
        return [pid for pid, _, _ in sorted(pair, key=lambda start: start[1])]

    def await_saved(self, step: int) -> None:
        """Wait until the checkpoint of a step is whole, or a later one."""
        self._await(lambda: self.saved >= step)

    def _await(self, is_so: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: is_so() or self._has_ended, DEADLINE), "".join(self.lines)
            assert is_so(), "".join(self.lines)

    def end(self) -> None:
        """Wait for its end, which must be a good one."""
        status = self.popen.wait(DEADLINE)
        self._reader.join(DEADLINE)
        assert status == 0, "".join(self.lines)

    def close(self) -> None:
        """End it, whatever its state."""
        if self.popen.poll() is None:
            self.popen.terminate()
            self.popen.wait(DEADLINE)
        self._reader.join(DEADLINE)
        assert self.popen.stdout is not None
        self.popen.stdout.close()


@pytest.mark.parametrize(
    ("mode", "kills"), [pytest.param("sharded", 2, marks=pytest.mark.gate), ("sharded", 20), ("whole", 20)]
)
def test_ranks_killed_while_they_save_go_on_from_the_newest_that_is_whole(
    tmp_path: Path, mode: str, kills: int
) -> None:
    """Some of the kills hit one rank, some the other, some both at once; then what they have begun is cleaned up."""
    chance, folder, finish = random.Random(mode), tmp_path / "run", tmp_path / "finish"
    for name in FOREIGN:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("theirs")
    job = Job(str(folder), mode, str(finish))
    try:
        for round_ in range(kills):
            pids = job.await_ranks(round_)
            job.await_saved(job.starts[2 * round_][2] + chance.randint(0, 3))
            threading.Event().wait(chance.uniform(0, 0.02))  # a moment of a save, whichever
            known = job.saved
            for pid in chance.choice([pids[:1], pids[1:], pids, pids[::-1]]):
                with contextlib.suppress(ProcessLookupError):  # the launcher may have ended the second by now
                    os.kill(pid, signal.SIGKILL)
            job.await_ranks(round_ + 1)
            assert job.starts[2 * round_ + 2][2] >= known, "".join(job.lines)
        job.await_saved(job.starts[2 * kills][2] + 3)
        finish.touch()
        job.end()
    finally:
        job.close()
    parts = 2 if mode == "sharded" else 1
    left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    ours = [name for name in left if name not in FOREIGN]
    assert set(FOREIGN) <= set(left)
    assert all((folder / name).read_text() == "theirs" for name in FOREIGN)
    assert len(ours) == 2 * parts, ours
    assert all(re.fullmatch(rf"step-\d+-[0-9a-f]{{8}}/part-\d-of-{parts}\.safetensors", name) for name in ours), ours
    assert len(list(folder.glob("step-*"))) == 3  # the folders of the two, and theirs
    assert CheckpointManager(folder, sharded=mode == "sharded").restore().step >= job.saved
