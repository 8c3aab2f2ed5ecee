"""The scripts of docs/trainers.md and docs/trackers.md, on two ranks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from session.tiers import in_turn

DOCS = Path(__file__).parents[3] / "docs"
DEADLINE = 240.0  # seconds; far more than anything takes, so that a busy machine fails no test
ON_TWO_RANKS = "distrun -np 2 python train.py"
DISTRUN = [sys.executable, "-m", "distrun.runner"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Returns a function that runs the script of a section of a page by its command, and returns what is printed."""
    for name, value in {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/runs.db")

    def run(page: str, section: str, command: str = "", prelude: str = "") -> str:
        part = (DOCS / page).read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
        (script,) = re.findall(r"```python\n(.*?)```", part, re.DOTALL)
        (tmp_path / "train.py").write_text(prelude + script)
        (command,) = [command] if command else re.findall(r"```\n(\S.*)\n```", part)
        words = {"distrun": DISTRUN, "python": [sys.executable]}
        done = subprocess.run(
            [part for word in command.split() for part in words.get(word, [word])],
            cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout[-5000:]}\n{done.stderr[-10000:]}"
        return done.stdout + done.stderr

    return run


@pytest.mark.gate
@pytest.mark.parametrize("section", in_turn("Lightning", "accelerate", "transformers"))
def test_ranks_train_together(run, section):
    pytest.importorskip(section.lower())
    said = run("trainers.md", section)
    losses = dict(re.findall(r"^\[\d\] rank (\d) of 2: loss (\S+)$", said, re.MULTILINE))
    assert set(losses) == {"0", "1"}, said
    assert losses["0"] == losses["1"]
    assert ("torch.distributed is on distrun" in said) is (section != "Lightning")


def test_lightning_trains_in_one_process_too(run):
    pytest.importorskip("lightning")
    assert "rank 0 of 1: loss" in run("trainers.md", "Lightning", "python train.py")


def test_each_job_of_hydra_has_its_ranks(run, tmp_path):
    pytest.importorskip("hydra")
    said = run("trainers.md", "Hydra")
    printed = re.findall(r"^\[\d\] (rank \d trains with \S+)$", said, re.MULTILINE)
    assert sorted(printed) == [f"rank {rank} trains with {lr}" for rank in (0, 1) for lr in (0.1, 0.2)]
    assert sorted(file.read_text() for file in tmp_path.glob("multirun/*/*/*/result.txt")) == ["0.2\n", "0.4\n"]


def test_jobs_run_at_the_same_time_in_threads(run):
    assert "[[2, 2], [4, 4]]\n" in run("trainers.md", "Jobs in the background")


def test_rank_0_alone_writes_for_tensorboard(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)  # TensorBoard does without, and importing it takes long
    loading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run("trackers.md", "TensorBoard", ON_TWO_RANKS, "import sys\nsys.modules['tensorflow'] = None\n")
    (file,) = (tmp_path / "logs").iterdir()
    events = loading.EventAccumulator(str(file))
    events.Reload()
    assert [point.value for point in events.Scalars("loss")] == [0.5, 1.5, 2.5]


def test_rank_0_alone_has_a_run_of_wandb(run, tmp_path):
    pytest.importorskip("wandb")
    said = run("trackers.md", "Weights & Biases", ON_TWO_RANKS)
    assert len(list(tmp_path.glob("wandb/offline-run-*"))) == 1
    assert re.search(r"^\[0\] wandb: +loss 2.5$", said, re.MULTILINE)
    assert re.search(r"^\[0\] wandb: +ranks 2$", said, re.MULTILINE)
    assert "[1]" not in said


def test_rank_0_alone_has_a_run_of_mlflow(run, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    run("trackers.md", "MLflow", ON_TWO_RANKS)
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/runs.db")
    (found,) = client.search_runs(["0"])
    assert (found.info.run_name, found.data.params) == ("first", {"ranks": "2"})
    assert [point.value for point in client.get_metric_history(found.info.run_id, "loss")] == [0.5, 1.5, 2.5]
