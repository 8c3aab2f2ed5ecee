"""Rank 1 dies; the others hear of it wherever they wait."""

import os
import re
import signal

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
try:
    dist.all_reduce(torch.ones(2))
except JobAbortedError as error:
    # How it has ended is not known where the launcher collects it late.
    assert re.search(r"process group 'default_pg'.*rank 1.* (was killed by SIGKILL|is gone)", str(error)), error
else:
    raise AssertionError("rank 1 is not missed")
with raises(JobAbortedError, "rank 1"):
    dist.barrier(pair)
with raises(RuntimeError, "rank 1"):
    dist.all_reduce(torch.ones(2), async_op=True).get_future().wait()
dist.destroy_process_group()
print("told")
