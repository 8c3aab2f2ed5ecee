"""The profile that a real job leaves in its timeline and its report, and what `distrun predict` says of it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from distrun.runner.observation.prediction.reading import read

TRAINING = Path(__file__).parent / "programs" / "known_times.py"
DEADLINE = 120.0  # seconds, on a busy machine
NUMPY = "import distrun, numpy; distrun.init(); [distrun.allreduce(numpy.ones(9), name='a') for _ in range(30)]"

TUNED = """
import torch, distrun.torch as dt
dt.init()
layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
optimizer = dt.DistributedOptimizer(torch.optim.SGD(layers.parameters(), lr=0.01), layers.named_parameters())
for _ in range(120):
    optimizer.zero_grad()
    layers(torch.ones(2, 64)).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def run(distrun, tmp_path):
    """Runs two ranks with a timeline and a report; returns these files."""

    def start(*command: str) -> tuple[Path, Path]:
        timeline, report = tmp_path / "trace.json.gz", tmp_path / "report.html"
        job = distrun("-np", "2", "--timeline", str(timeline), "--report", str(report), sys.executable, *command)
        assert job.wait(DEADLINE) == 0, job.stderr.data.decode()
        return timeline, report

    return start


@pytest.mark.gate
def test_timeline_and_report_have_the_profile_of_the_job(run, distrun):
    timeline, report = run(str(TRAINING), "30")
    profile = read(str(timeline))
    assert read(str(report)) == profile
    assert (profile.ranks, profile.hosts, profile.ranks_per_host) == (2, 1, 2)
    assert profile.seconds.input >= 0.010
    assert profile.seconds.forward >= 0.020
    assert profile.seconds.backward >= 0.040
    assert profile.seconds.step >= 0.070
    late, early = 4 * (256 * 256 + 256), 4 * (256 + 1)
    assert sum(batch.bytes for batch in profile.gradients) == pytest.approx(late + early, abs=64)
    assert max(batch.ready for batch in profile.gradients) >= 0.040
    assert all(batch.seconds > 0 for batch in profile.gradients)

    job = distrun("predict", str(timeline), "--hosts", "2,4", "--link", "10gbit", "--json")
    assert job.wait(DEADLINE) == 0
    two, four = json.loads(job.stdout.data)["predictions"]
    assert 0.070 <= two["step_s"] <= four["step_s"]

    text = report.read_text()
    assert "Scaling efficiency on more hosts" in text
    assert "links of 10 Gbit/s between several are assumed" in text


def test_what_autotuning_has_chosen_is_among_the_settings(distrun, tmp_path):
    report = tmp_path / "report.html"
    job = distrun("-np", "2", "--autotune", "--report", str(report), sys.executable, "-c", TUNED)
    line = re.search(r"distrun: autotune: (.*)", job.ended(0, DEADLINE).decode())[1]
    rows = ElementTree.fromstring(report.read_text().removeprefix("<!DOCTYPE html>\n")).iter("tr")
    settings = {cells[0].text: cells[1].text for row in rows if len(cells := row.findall("td")) == 2}
    assert settings["autotuned"] == line
    assert settings["DISTRUN_AUTOTUNE"] == "1"


@pytest.mark.gate
def test_a_job_without_backward_passes_is_told_why_it_cannot_be_predicted(run, distrun):
    for file in run("-c", NUMPY):
        error = distrun("predict", str(file), "--hosts", "4", "--link", "10gbit").ended(2, DEADLINE).decode()
        assert "left no profile to predict from: no rank has told when a backward pass began" in error
        assert error.count("\n") == 1
