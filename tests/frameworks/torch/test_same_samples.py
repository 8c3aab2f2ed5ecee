"""Ranks that train on the same samples have the same gradients in the first steps, and that gets a word."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from running_distrun import launches

from distrun.tracing import gradients, recording

pytestmark = pytest.mark.gate
WORD = b"all ranks had the same gradients in the first two steps, so they train on the same samples: "
PROGRAM = """
import os, sys
import numpy as np
from distrun.tracing import gradients

note, notes = gradients.note, []
gradients.note = lambda *given: (notes.append(given), note(*given))
library, depends, steps = sys.argv[1], int(sys.argv[2]), 6
np.random.seed(depends * int(os.environ["RANK"]))
samples = [np.random.rand(8, 4).astype("float32") for _ in range(steps)]
if library == "torch":
    import torch, distrun.torch as dt
    dt.init()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
    optimizer = dt.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
    for batch in samples:
        model(torch.tensor(batch)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
else:
    import jax, distrun.jax as dj
    dj.init()
    step = jax.jit(dj.value_and_grad(lambda weights, batch: ((batch @ weights) ** 2).mean()))
    for batch in samples:
        step(np.ones(4, "float32"), batch)
assert len(notes) == gradients.STEPS + 1, "later steps are not looked at"
"""


@pytest.mark.parametrize(
    ("library", "depends", "options", "words"),
    [("torch", 0, (), 1), ("torch", 1, (), 0), ("torch", 0, ("-q",), 0), ("jax", 0, (), 1), ("jax", 1, (), 0)],
)
def test_ranks_that_train_on_the_same_samples_get_one_word(tmp_path, library, depends, options, words):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with launches(tmp_path) as start:
        said = start("-np", "2", *options, sys.executable, str(program), library, str(depends)).ended(0)
    assert said.count(WORD) == words


@pytest.fixture
def told(monkeypatch):
    """Returns the digest that a rank tells of these gradients, which come in each of three steps."""

    def digest(*arrays):
        monkeypatch.setattr(gradients, "_times", {})
        monkeypatch.setattr(gradients, "_digest", 0)
        monkeypatch.setattr(gradients, "are_open", True)
        written = []
        ring = type("Ring", (), {"tell_gradients": lambda _, number: written.append(number)})()
        monkeypatch.setattr(recording, "ring", ring)
        for _ in range(gradients.STEPS):
            for place, array in enumerate(arrays):
                gradients.note(f"bucket {place}", [array])
        assert gradients.are_open
        assert not written
        gradients.note("bucket 0", [arrays[0]])
        assert not gradients.are_open
        return written.pop()

    return digest


def test_digests_tell_arrays_apart_and_leave_out_what_says_nothing_of_samples(told):
    ramp = np.arange(100_000, dtype=np.float32)
    assert told(ramp) == told(ramp.copy()) != told(ramp + 1)
    assert told(ramp) == told(ramp, np.zeros(9)) == told(ramp, np.array([1, np.inf])) == told(ramp, np.array([np.nan]))
    assert told(ramp) == told(ramp, np.array([0x7FC0, 1], np.uint16))  # bfloat16's NaN
    assert told(np.zeros(9)) == 0
