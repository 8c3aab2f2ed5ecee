"""A script of torch.distributed, which does not use distrun but for its checkpoints: `ddp_checkpoint.py FOLDER STEPS`.

It prints, on rank 0, the step that it has started from and the sum of the weights at the end.
"""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import distrun
from distrun.checkpoint import CheckpointManager

FOLDER, STEPS, SHARDED = sys.argv[1], int(sys.argv[2]), sys.argv[3:] == ["sharded"]
FAIL_AT = int(os.environ.get("FAIL_AT", "0"))
"""The step after which rank 1 dies, in the first run."""
torch.set_num_threads(1)
torch.manual_seed(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(50, 50), torch.nn.Linear(50, 1)))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
checkpoints = CheckpointManager(FOLDER, sharded=SHARDED)
if dist.get_rank() != 0 and any(Path(FOLDER).glob("*/part-*")):
    torch.nn.init.zeros_(model.module[0].weight)  # whatever a rank has is overwritten
start = checkpoints.restore(model=model, optimizer=optimizer)
for step in range(start.step, STEPS):
    torch.manual_seed(100 * step + dist.get_rank())
    optimizer.zero_grad()
    model(torch.randn(8, 50)).square().mean().backward()
    optimizer.step()
    checkpoints.save(step + 1, model=model, optimizer=optimizer)
    if step + 1 == FAIL_AT and distrun.restart_count() == 0 and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
checkpoints.close()
sums = [None] * dist.get_world_size()
dist.all_gather_object(sums, sum(each.double().sum().item() for each in model.parameters()))
if start.step:
    assert len(set(sums)) == 1, sums
dist.barrier()  # nobody leaves while another is still in the collective before
if dist.get_rank() == 0:
    print("RESULT", start.step, sums[0], distrun.restart_count(), flush=True)
os._exit(0)  # torch rarely aborts in destroy_process_group, "terminate called without an active exception"
