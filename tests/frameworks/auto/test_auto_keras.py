"""Zero-line mode for Keras: a plain script trains on several ranks as it does in one process, or is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("keras")

PROGRAMS = Path(__file__).parent / "programs"
BACKENDS = ("tensorflow", "jax", "torch")
DEADLINE = 600.0  # seconds; far more than anything takes, so that a busy machine fails no test


def environment(backend):
    quick = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    return {**os.environ, **quick, "KERAS_BACKEND": backend, "DISTRUN_STALL_TIMEOUT": "120"}


def start(backend, size, mode, program, *arguments):
    """Start a script on several ranks in zero-line mode, or on its own if `size` is 0."""
    auto = ["-m", "distrun.runner", "-np", str(size), sys.executable, "-m", "distrun.auto", mode] if size else []
    return subprocess.Popen(
        [sys.executable, *auto, str(PROGRAMS / program), *map(str, arguments)],
        env=environment(backend),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def output_of(process):
    try:
        return process.communicate(timeout=DEADLINE)[0]
    finally:
        process.kill()


@pytest.fixture(scope="session", params=BACKENDS)
def both(request, tmp_path_factory):
    """The results of keras_models.py in one process, and on three ranks."""
    pytest.importorskip(request.param)
    folders = [tmp_path_factory.mktemp(f"{request.param}-{name}") for name in ("alone", "together")]
    runs = [
        start(request.param, size, "global", "keras_models.py", folder)
        for size, folder in zip((0, 3), folders, strict=True)
    ]
    outputs = [output_of(run) for run in runs]
    for run, output in zip(runs, outputs, strict=True):
        assert run.returncode == 0, output[-8000:]
    assert outputs[1].count("done arrays") == 1, "the other ranks print nothing"
    line = "keras_models.py trains on 3 ranks: each batch of 12 is divided (4+4+4), gradients are averaged."
    assert outputs[1].count(line) == 1, "the command says what it has changed"
    return [json.loads((folder / "0.json").read_text()) for folder in folders]


def test_each_model_comes_to_what_it_does_in_one_process(both):
    alone, together = both
    assert alone.keys() == together.keys()
    assert len(alone) > 18
    for case, outcome in alone.items():
        assert together[case].keys() == outcome.keys(), case
        for name, values in outcome.items():
            # Gradients of mixed precision are rounded to float16 on each rank.
            tolerance = 0.02 if case == "mixed" else 3e-4
            np.testing.assert_allclose(together[case][name], values, tolerance, 1e-3, err_msg=f"{case}: {name}")


REFUSALS = {
    "different_data": "read different data",
    "different_batches": "read different data",
    "own_loop": "a training loop of the script's own",
    "odd_loss": "neither the sum nor the mean",
    "no_reduction": "reduction=None",
    "unknown_optimizer": "no attribute of the model",
    "distribution": "distributes by itself",
    "summed_step": "adds up its rows",
    "partly_summed_step": "is not the mean of the losses of its rows",
    "contrasted_step": "is not the mean of the losses of its rows",
    "summed_compute_loss": "adds up its rows",
    "summed_added_loss": "its rows",
    "root_of_mean": "is not the mean of the losses of its rows",
    "dice": "is not the mean of the losses of its rows",
    "summed_rows": "adds up its rows",
    "centered": "a layer compares rows with each other",
    "stateful": "is stateful: it keeps a state for each row",
    "maximum_metric": "the metric largest of the script does not add up",
    "training_alone": "trains a model",
}


_ON_ALL = [("summed_step", backend) for backend in BACKENDS]
_ON_SOME = {
    ("clipping_step", "torch"): "clips gradients by torch.nn.utils.clip_grad_norm_",
    ("clipping_step", "tensorflow"): "clips gradients by tf.clip_by_global_norm",
    ("different_later", "tensorflow"): "read different data",
}


@pytest.mark.parametrize(
    ("case", "backend"),
    [*((case, BACKENDS[place % 3]) for place, case in enumerate(REFUSALS)), *_ON_ALL[1:], *_ON_SOME],
)
def test_what_cannot_be_right_is_refused(backend, case):
    pytest.importorskip(backend)
    process = start(backend, 2, "global", "keras_refused.py", case)
    output = output_of(process)
    assert process.returncode == 2, output
    # Another rank's lines may come between.
    lines = [line.removeprefix("[0] ").strip() for line in output.splitlines() if line.startswith("[0] ")]
    output = " ".join(lines)
    assert "distrun --auto: refused: " in output
    assert (REFUSALS.get(case) or _ON_SOME[case, backend]) in output
    assert "Write instead:" in output
