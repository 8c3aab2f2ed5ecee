"""Checkpoints of processes that are killed, that end, that fork, and whose disk is full."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading

import pytest
from session.tiers import one_in_gate

from distrun.checkpoint import CheckpointManager

pytestmark = pytest.mark.gate

DEADLINE = 60.0  # seconds; far more than anything takes, so that a busy machine fails no test
TRAIN = """
import sys
import numpy as np
from distrun.checkpoint import CheckpointManager

weights = np.zeros(500_000, np.int64)
checkpoints = CheckpointManager(sys.argv[1], max_to_keep=2)
start = checkpoints.restore(weights=weights)
print("restored", start.step, set(start.weights.tolist()), flush=True)
weights[:] = start.weights
for step in range(start.step, start.step + 1000):
    weights += 1
    checkpoints.save(step + 1, weights=weights)
    print("saving", step + 1, flush=True)  # whatever came before is on the disk
"""


def python(program, *arguments, **options):
    """Run a program to its end."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False, **options)


PREEMPTED = """
import signal, sys
import numpy as np
import distrun
from distrun.checkpoint import CheckpointManager

distrun.init()
weights = np.zeros(1000)
checkpoints = CheckpointManager(sys.argv[1])
start = checkpoints.restore(weights=weights)
print("starts at", start.step, set(start.weights.tolist()) == {start.step}, flush=True)
weights[:] = start.weights
asked = np.zeros(1)
signal.signal(signal.SIGTERM, lambda *_: asked.fill(1))
print("trains", flush=True)
for step in range(start.step, 1 << 30):
    weights += 1
    if distrun.allreduce(asked, op=distrun.Max, name="asked")[0]:
        checkpoints.save(step + 1, weights=weights)
        print("ends after", step + 1, flush=True)
        break
"""


@pytest.mark.full
def test_ranks_that_are_preempted_save_within_the_grace_and_go_on_later(tmp_path):
    command = [sys.executable, "-m", "distrun.runner", "--grace", "60", "-np", "2", "--no-tag-output"]
    ended = 0
    for _ in range(2):
        job = subprocess.Popen(
            [*command, sys.executable, "-c", PREEMPTED, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        lines = [job.stdout.readline() for _ in range(4)]
        assert sorted(lines) == [f"starts at {ended} True\n"] * 2 + ["trains\n"] * 2
        job.send_signal(signal.SIGTERM)
        rest, _ = job.communicate(timeout=DEADLINE)
        (last,) = set(rest.splitlines())
        assert job.returncode == 143
        assert int(last.removeprefix("ends after ")) > ended
        ended = int(last.removeprefix("ends after "))


FULL_DISK = """
import resource, signal, sys
import numpy as np
from distrun.checkpoint import CheckpointManager

checkpoints = CheckpointManager(sys.argv[1])
checkpoints.save(1, weights=np.ones(1000))
checkpoints.wait()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
checkpoints.save(2, weights=np.ones(100_000))
"""


def test_a_disk_that_is_full_at_the_end_fails_the_process_and_leaves_the_former(tmp_path):
    done = python(FULL_DISK, tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        f"distrun: the checkpoint of step 2 could not be written to {tmp_path}: File too large; those before it are as "
        "they were\n"
    )
    assert CheckpointManager(tmp_path).restore().step == 1
    assert [each.name for each in tmp_path.rglob(".*")] == []


def test_a_process_that_ends_waits_for_what_is_being_written(tmp_path):
    program = (
        "import sys; from distrun.checkpoint import CheckpointManager as M; M(sys.argv[1]).save(1, x=bytes(10**7))"
    )
    assert python(program, tmp_path).returncode == 0
    assert CheckpointManager(tmp_path).restore(x=None).x == bytes(10**7)


FORKS = """
import os, sys
from distrun.checkpoint import CheckpointManager

checkpoints = CheckpointManager(sys.argv[1])
checkpoints.save(1, x=bytes(10**7))
if not (child := os.fork()):
    checkpoints.wait()  # the thread is the parent's
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_child_waits_for_nothing(tmp_path):
    done = python(FORKS, tmp_path)
    assert done.returncode == 0, done.stderr
    assert CheckpointManager(tmp_path).restore().step == 1


@pytest.mark.parametrize("kills", one_in_gate(4, 20))
def test_a_process_killed_at_any_moment_leaves_the_last_one_whole(tmp_path, kills):
    """In each round, what was on the disk when the process was killed is what the next one goes on from."""
    chance = random.Random(0)
    acknowledged = 0
    for _ in range(kills):
        process = subprocess.Popen([sys.executable, "-c", TRAIN, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        word, restored, values = process.stdout.readline().split()
        assert word == "restored"
        assert int(restored) >= acknowledged - 1  # "saving n" came before n was on the disk
        assert values == f"{{{restored}}}"
        for _ in range(chance.randint(1, 6)):
            acknowledged = int(process.stdout.readline().split()[1])
        threading.Event().wait(chance.uniform(0, 0.05))  # a moment of a write, whichever
        process.send_signal(signal.SIGKILL)
        acknowledged = max([acknowledged, *(int(line.split()[1]) for line in process.stdout)])
        process.stdout.close()
        process.wait()
    assert acknowledged >= kills
    with CheckpointManager(tmp_path, max_to_keep=1) as checkpoints:
        checkpoints.save(1, x=1)
    left = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert len(left) == 1, left  # nothing of what was begun is left
