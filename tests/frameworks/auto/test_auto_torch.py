"""Plain PyTorch scripts on several ranks: what they print and write; the situations have what they compute."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gate
PROGRAMS = Path(__file__).parent / "programs"
DEADLINE = 600.0  # seconds; far more than it takes, so that a busy machine fails no test


def run(
    folder: Path, *words: str, ranks: int, mode: str = "global", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a script in a folder: as it is, or on several ranks."""
    prefix = [Path(sys.executable).with_name("distrun"), "-q", f"--auto={mode}", "-np", f"{ranks}", "--oversubscribe"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    command = [*(prefix if ranks else []), sys.executable, *words]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=DEADLINE)


PLAIN = """
import torch
from torch.utils.data import DataLoader, TensorDataset

net = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for (x,) in DataLoader(TensorDataset(torch.randn(30, 6)), batch_size=10):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
print("the end")
"""


def test_rank_0_prints_alone_and_two_lines_say_what_was_changed(tmp_path):
    (tmp_path / "plain.py").write_text(PLAIN)
    ended = run(tmp_path, "plain.py", ranks=2)
    assert ended.stdout.splitlines() == ["[0] the end"]
    first, second = ended.stderr.splitlines()
    assert first.endswith("plain.py trains on 2 ranks: each batch of 10 is divided (6+4), gradients are averaged.")
    assert "rank 0 alone prints and writes files" in second


def test_in_scale_mode_each_rank_takes_a_batch_and_rank_0_writes_the_files(tmp_path):
    folder = tmp_path / "here"
    folder.mkdir()
    ended = run(folder, str(PROGRAMS / "torch_scale.py"), ranks=2, mode="scale", TMPDIR=str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "[0] ['3', 'steps', 'the', 'end'] ['log.txt', 'weights.pt']\n"
    assert "each takes a batch of the script's size (11+9 = 20 samples a step)" in ended.stderr
    assert "The learning rate is the script's" in ended.stderr
    assert os.listdir(tmp_path) == ["here"]
    assert (folder / "results" / "log.txt").read_text() == "3 steps\nthe end\n"


@pytest.mark.full
def test_losses_that_are_tested_written_and_saved_are_those_of_the_batch_and_a_folder_may_be_of_the_time(tmp_path):
    pytest.importorskip("tensorboard")
    (tmp_path / "alone").mkdir()
    (tmp_path / "together").mkdir()
    program = str(PROGRAMS / "torch_writing.py")
    alone, together = run(tmp_path / "alone", program, ranks=0), run(tmp_path / "together", program, ranks=2)
    assert alone.returncode == together.returncode == 0, together.stderr
    assert together.stdout == f"[0] {alone.stdout}"
    assert len(list((tmp_path / "together").glob("run-*/last.pt"))) == 1
