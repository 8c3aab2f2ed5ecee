"""Rank 1 dies; the others hear of it wherever they wait."""

import os
import signal

import pytest
import torch
import torch.distributed as dist
from expecting import raises

from distrun import JobAbortedError

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which comes when rank 1 is dead
dist.init_process_group("distrun")
pair = dist.new_group([0, 1])
dist.all_reduce(torch.ones(2))
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
# How it has ended is not known where the launcher collects it late.
with pytest.raises(JobAbortedError, match=r"(?s)process group 'default_pg'.*rank 1.* (was killed by SIGKILL|is gone)"):
    dist.all_reduce(torch.ones(2))
with raises(JobAbortedError, "rank 1"):
    dist.barrier(pair)
with raises(RuntimeError, "rank 1"):
    dist.all_reduce(torch.ones(2), async_op=True).get_future().wait()
dist.destroy_process_group()
print("told")
