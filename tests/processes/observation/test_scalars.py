"""Figures beside the scalars of a script, read back by the readers of TensorBoard and MLflow themselves."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "with_scalars.py"
DEADLINE = 120.0  # seconds, on a busy machine
FIGURES = {"distrun/steps_per_second", "distrun/share_waiting"}


@pytest.fixture
def train(distrun, tmp_path):
    """Trains two ranks that write scalars; returns the folder they write to."""

    def start(kind: str) -> Path:
        folder = tmp_path / "scalars"
        folder.mkdir()
        command = (sys.executable, str(PROGRAM), kind, str(folder))
        job = distrun("-np", "2", *command, DISTRUN_SCALARS="0.5", CUDA_VISIBLE_DEVICES="")
        assert "scalars" not in job.ended(0, DEADLINE).decode()
        return folder

    return start


@pytest.fixture
def loaded(monkeypatch):
    """Return a function that returns what TensorBoard finds in a folder."""
    monkeypatch.setitem(sys.modules, "tensorflow", None)  # TensorBoard does without, and importing it takes long
    loading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def load(folder: Path):
        found = loading.EventAccumulator(str(folder))
        found.Reload()
        return found

    return load


@pytest.mark.gate
def test_beside_those_of_torchs_summary_writer(train, loaded):
    events = loaded(train("torch"))
    found = {name: events.Scalars(name) for name in events.Tags()["scalars"]}
    assert set(found) == FIGURES | {"loss"}
    steps = found["distrun/steps_per_second"]
    assert len(steps) >= 2
    assert all(point.value > 0 for point in steps)
    assert steps[-1].step <= found["loss"][-1].step + 1
    assert [point.step for point in steps] == sorted({point.step for point in steps})
    assert all(0 <= point.value <= 1 for point in found["distrun/share_waiting"])


@pytest.mark.skipif(not find_spec("tensorflow") or not find_spec("keras"), reason="TensorFlow or Keras is missing")
def test_beside_those_of_kerass_callback(train, loaded):
    folder = train("keras")
    assert (folder / "train").is_dir()
    found = loaded(folder / "distrun")
    assert set(found.Tags()["tensors"]) >= FIGURES
    assert len(found.Tensors("distrun/steps_per_second")) >= 2


def test_among_those_of_an_active_run_of_mlflow(train):
    mlflow = pytest.importorskip("mlflow")
    folder = train("mlflow")
    client = mlflow.MlflowClient(f"sqlite:///{folder}/runs.db")
    (run,) = client.search_runs(["0"])
    assert set(run.data.metrics) >= FIGURES
    history = client.get_metric_history(run.info.run_id, "distrun/steps_per_second")
    assert len(history) >= 2
    assert all(point.value > 0 for point in history)


def test_a_script_that_writes_no_scalars_stays_as_it_is(train):
    assert list(train("none").iterdir()) == []
