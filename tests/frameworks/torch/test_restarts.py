"""A script of torch.distributed, without a line of distrun, whose ranks are started again."""

from __future__ import annotations

import pytest

SCRIPT = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
count = os.environ["TORCHELASTIC_RESTART_COUNT"]
if dist.get_rank() == 1 and count == "0":
    os._exit(9)
dist.all_reduce(torch.ones(1))
print("done", dist.get_rank(), count, os.environ["TORCHELASTIC_MAX_RESTARTS"], flush=True)
dist.destroy_process_group()
"""


@pytest.mark.gate
def test_torchruns_restarts_are_restarts(run_script, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    torchrun = ["-m", "distrun.compat", "torchrun", "--nproc-per-node", "2", "--max-restarts", "2"]
    job = run_script([], *torchrun, str(script))
    assert sorted(job.stdout.splitlines()) == ["done 0 1 2", "done 1 1 2"]
    assert "exited with code 9" in job.stderr
