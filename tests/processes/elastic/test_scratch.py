"""The temporary files of ranks that are killed, in elastic jobs."""

from __future__ import annotations

import sys

import pytest
from session.tiers import one_in_gate

SCRIPT = """
import os, signal, tempfile
{uses}
print("uses", tempfile.gettempdir(), len(os.listdir(os.environ["DISTRUN_SCRATCH"])), flush=True)
distrun.barrier()
if os.environ["DISTRUN_GENERATION"] == "1" and distrun.rank() == distrun.size() - 1:
    os.kill(os.getpid(), signal.SIGKILL)
distrun.barrier()
"""
SOCKET = """
from multiprocessing.connection import Listener
import distrun

distrun.init()
listener = Listener(family="AF_UNIX")
"""
LOADER = """  # whose workers have handed over tensors, for which they listen at sockets
import torch
from torch.utils.data import DataLoader
import distrun

distrun.init()
batches = iter(DataLoader(torch.ones(64, 8), batch_size=2, num_workers=2))
next(batches)
"""
TRACED = """  # a function for which TensorFlow has generated Python
import tensorflow as tf
import distrun.tensorflow as distrun

@tf.function
def relu(x):
    return x if tf.reduce_sum(x) > 0 else 0 * x

distrun.init()
relu(tf.ones(2))
"""


@pytest.mark.gate
@pytest.mark.parametrize(
    ("library", "uses", "size"),
    one_in_gate(
        pytest.param("multiprocessing", SOCKET, 2, id="multiprocessing"),
        pytest.param("torch", LOADER, 2, id="torch"),
        pytest.param("tensorflow", TRACED, 1, id="tensorflow"),
    ),
)
def test_nothing_is_left_of_a_rank_that_is_killed(distrun, tmp_path, library, uses, size):
    pytest.importorskip(library)
    (script := tmp_path / "train.py").write_text(SCRIPT.format(uses=uses))
    job = distrun("--max-restarts", "1", "-np", str(size), "-H", "localhost:2", sys.executable, str(script))
    for generation in (1, 2):
        job.stdout.wait_for(b"uses", size * generation)
    assert job.wait() == 0
    assert b"was killed by SIGKILL" in job.stderr.data
    lines = job.stdout.data.splitlines()
    assert len(lines) == 2 * size
    assert all(f"uses {tmp_path / 'tmp'} ".encode() in line and not line.endswith(b" 0") for line in lines)
