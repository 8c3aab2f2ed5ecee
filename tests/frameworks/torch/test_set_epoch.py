"""A DistributedSampler that nobody tells of epochs gives all of them one order, and that gets a word."""

from __future__ import annotations

import sys

import pytest
from running_distrun import launches

PROGRAM = """
import sys, torch, distrun.torch as dt
from torch.utils.data import DataLoader, DistributedSampler

dt.init()
tells, shuffle, trains = (word == "True" for word in sys.argv[1:])
sampler = DistributedSampler(range(8), dt.size(), dt.rank(), shuffle=shuffle)
loader = DataLoader(torch.ones(8, 2), batch_size=2, sampler=sampler)
model = torch.nn.Linear(2, 1)
optimizer = dt.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
for epoch in range(4):
    if tells:
        sampler.set_epoch(epoch)
    for batch in loader:
        loss = model(batch).sum()
        if trains:
            loss.backward()
            optimizer.step()
"""
WORD = b"call set_epoch(epoch) of the DistributedSampler before each"


@pytest.mark.gate
@pytest.mark.parametrize(
    ("tells", "shuffle", "trains", "options", "words"),
    [
        (False, True, True, (), 1),
        (False, True, True, ("-q",), 0),
        (True, True, True, (), 0),
        (False, False, True, (), 0),
        (False, True, False, (), 0),
    ],
)
def test_epochs_of_training_in_one_order_get_one_word(tmp_path, tells, shuffle, trains, options, words):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with launches(tmp_path) as start:
        said = start(*options, "-np", "2", sys.executable, str(program), *map(str, (tells, shuffle, trains))).ended(0)
    assert said.count(WORD) == words
