"""The Python of pages about training runs on two ranks, block after block, as scripts that have the rest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
BEFORE = """
import os, sys
import torch
import distrun.torch as dt

dt.init()
os.chdir(sys.argv[1])
torch.manual_seed(0)
images = torch.randn(37, 4)
dataset = torch.utils.data.TensorDataset(images, (images.sum(1) > 0).long())
loader = torch.utils.data.DataLoader(dataset, 8, sampler=dt.distributed_sampler(dataset))
model = torch.nn.Linear(4, 2)
optimizer = dt.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
dt.broadcast_parameters(model.state_dict(), root_rank=0)
epoch = 6


def step():
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), dataset.tensors[1]).backward()
    optimizer.step()
"""
SAVED_AND_RESTORED = """
step()
{saving}
dt.barrier()  # the file is there
before = {{name: value.clone() for name, value in model.state_dict().items()}}
step()
{restoring}
assert start == 7
assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
alone = (model(images).argmax(1) == dataset.tensors[1]).float().mean().item()
{evaluating}
assert abs(accuracy(model, dataset) - alone) < 1e-6, "every sample counts once"
assert model.training
"""
SCHEDULED = """
{scheduling}
rates = []
for _ in range(90 * len(loader)):
    rates.append(schedule.get_last_lr()[0])
    step()
    schedule.step()
assert abs(rates[0] - 0.1) < 1e-9, rates[0]
assert abs(max(rates) - 0.2) < 1e-9 and rates.index(max(rates)) == 5 * len(loader), max(rates)
assert rates[-1] < 1e-4
"""


@pytest.fixture
def run(run_warm, tmp_path):
    def finish(body):
        (tmp_path / "page.py").write_text(BEFORE + body)
        run_warm("torch", 2, tmp_path / "page.py", str(tmp_path))

    return finish


def snippets(page):
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.gate
def test_what_one_rank_saves_is_what_all_go_on_from_and_an_evaluation_counts_each_sample_once(run):
    saving, restoring, evaluating = snippets("saving.md")[:3]
    run(SAVED_AND_RESTORED.format(saving=saving, restoring=restoring, evaluating=evaluating))


@pytest.mark.gate
def test_the_rate_rises_to_that_of_all_ranks_and_falls(run):
    run(SCHEDULED.format(scheduling=snippets("learning-rate.md")[0]))
