"""The temporary files of ranks that are killed, in elastic jobs."""

from __future__ import annotations

import sys

import pytest
from session.tiers import one_in_gate

# The last rank kills itself while it listens at a socket of multiprocessing's.
SOCKET = """
import os, signal, tempfile
from multiprocessing.connection import Listener
import distrun

distrun.init()
listener = Listener(family="AF_UNIX")
print("uses", tempfile.gettempdir(), len(os.listdir(os.environ["DISTRUN_SCRATCH"])), flush=True)
distrun.barrier()
if os.environ["DISTRUN_GENERATION"] == "1" and distrun.rank() == distrun.size() - 1:
    os.kill(os.getpid(), signal.SIGKILL)
distrun.barrier()
"""


# The last rank kills itself when the workers of its loader have handed over tensors, for which they listen at sockets.
LOADER = """
import os, signal, tempfile
import torch
from torch.utils.data import DataLoader
import distrun

distrun.init()
batches = iter(DataLoader(torch.ones(64, 8), batch_size=2, num_workers=2))
next(batches)
print("uses", tempfile.gettempdir(), len(os.listdir(os.environ["DISTRUN_SCRATCH"])), flush=True)
distrun.barrier()
if os.environ["DISTRUN_GENERATION"] == "1" and distrun.rank() == distrun.size() - 1:
    os.kill(os.getpid(), signal.SIGKILL)
distrun.barrier()
"""


# The last rank kills itself when TensorFlow has generated Python for a function that it has traced.
TRACED = """
import os, signal, tempfile
import tensorflow as tf
import distrun.tensorflow as dt

@tf.function
def relu(x):
    return x if tf.reduce_sum(x) > 0 else 0 * x

dt.init()
relu(tf.ones(2))
print("uses", tempfile.gettempdir(), len(os.listdir(os.environ["DISTRUN_SCRATCH"])), flush=True)
dt.barrier()
if os.environ["DISTRUN_GENERATION"] == "1" and dt.rank() == dt.size() - 1:
    os.kill(os.getpid(), signal.SIGKILL)
dt.barrier()
"""


@pytest.mark.gate
@pytest.mark.parametrize(
    ("library", "code", "size"),
    one_in_gate(
        pytest.param("multiprocessing", SOCKET, 2, id="multiprocessing"),
        pytest.param("torch", LOADER, 2, id="torch"),
        pytest.param("tensorflow", TRACED, 1, id="tensorflow"),
    ),
)
def test_nothing_is_left_of_a_rank_that_is_killed(distrun, tmp_path, library, code, size):
    pytest.importorskip(library)
    (script := tmp_path / "train.py").write_text(code)
    job = distrun("--max-restarts", "1", "-np", str(size), "-H", "localhost:2", sys.executable, str(script))
    for generation in (1, 2):
        job.stdout.wait_for(b"uses", size * generation)
    assert job.wait() == 0
    assert b"was killed by SIGKILL" in job.stderr.data
    uses = job.stdout.data.splitlines()
    assert len(uses) == 2 * size
    assert all(f"uses {tmp_path / 'tmp'} ".encode() in line and not line.endswith(b" 0") for line in uses)
    job.assert_gone()
