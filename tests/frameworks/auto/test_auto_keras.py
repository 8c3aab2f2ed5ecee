"""Zero-line mode for Keras: a plain script trains on several ranks as it does in one process, or is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("keras")

pytestmark = pytest.mark.gate

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


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(("torch", ("arrays", "own_step", "nested_logs"), 2), id="some"),
        *(pytest.param((backend, (), 3), id=backend, marks=pytest.mark.full) for backend in BACKENDS),
    ],
)
def both(request, tmp_path_factory):
    """The results of keras_models.py, or of some of its models, in one process and on two or three ranks."""
    backend, models, ranks = request.param
    pytest.importorskip(backend)
    folders = [tmp_path_factory.mktemp(f"{backend}-{name}") for name in ("alone", "together")]
    runs = [
        start(backend, size, "global", "keras_models.py", folder, *models)
        for size, folder in zip((0, ranks), folders, strict=True)
    ]
    outputs = [output_of(run) for run in runs]
    for run, output in zip(runs, outputs, strict=True):
        assert run.returncode == 0, output[-8000:]
    assert outputs[1].count("done arrays") == 1, "the other ranks print nothing"
    parts = "+".join([f"{12 // ranks}"] * ranks)
    line = f"keras_models.py trains on {ranks} ranks: each batch of 12 is divided ({parts}), gradients are averaged."
    assert outputs[1].count(line) == 1, "the command says what it has changed"
    alone, together = (json.loads((folder / "0.json").read_text()) for folder in folders)
    assert alone.keys() == {*models} if models else len(alone) > 18
    return alone, together


def test_each_model_comes_to_what_it_does_in_one_process(both):
    alone, together = both
    assert alone.keys() == together.keys()
    for case, outcome in alone.items():
        assert together[case].keys() == outcome.keys(), case
        for name, values in outcome.items():
            # Gradients of mixed precision are rounded to float16 on each rank.
            tolerance = 0.02 if case == "mixed" else 3e-4
            np.testing.assert_allclose(together[case][name], values, tolerance, 1e-3, err_msg=f"{case}: {name}")


REFUSALS = {
    "torch": {
        "own_loop": "a training loop of the script's own",
        "unknown_optimizer": "no attribute of the model",
        "summed_step": "adds up its rows",
        "partly_summed_step": "is not the mean of the losses of its rows",
        "clipping_step": "clips gradients by torch.nn.utils.clip_grad_norm_",
        "summed_added_loss": "its rows",
        "summed_rows": "adds up its rows",
        "maximum_metric": "the metric largest of the script does not add up",
    },
    "jax": {
        "different_batches": "read different data",
        "no_reduction": "reduction=None",
        "summed_step": "adds up its rows",
        "summed_compute_loss": "adds up its rows",
        "dice": "is not the mean of the losses of its rows",
        "stateful": "is stateful: it keeps a state for each row",
    },
    "tensorflow": {
        "different_data": "read different data",
        "different_later": "read different data",
        "odd_loss": "neither the sum nor the mean",
        "distribution": "distributes by itself",
        "summed_step": "adds up its rows",
        "contrasted_step": "is not the mean of the losses of its rows",
        "clipping_step": "clips gradients by tf.clip_by_global_norm",
        "root_of_mean": "is not the mean of the losses of its rows",
        "centered": "a layer compares rows with each other",
    },
}


def reasons(backend, *cases):
    """Return the status and the reason with which each training is refused, by its name; all in one job."""
    pytest.importorskip(backend)
    process = start(backend, 2, "global", "keras_refused.py", *cases)
    output = output_of(process)
    assert process.returncode == 0, output[-8000:]
    return dict(re.findall(r"^\[0\] (\w+): (.*Write instead: .+|not refused)$", output, re.MULTILINE))


@pytest.fixture(scope="session", params=REFUSALS)
def refusals(request):
    return request.param, reasons(request.param, *REFUSALS[request.param])


@pytest.mark.full
def test_what_cannot_be_right_is_refused_with_what_to_write_instead(refusals):
    backend, found = refusals
    assert found.keys() == REFUSALS[backend].keys()
    for case, reason in REFUSALS[backend].items():
        assert re.match(f"2: .*{re.escape(reason)}", found[case]), case


@pytest.mark.full
def test_a_callback_of_one_rank_that_trains_a_model_is_refused():
    pytest.importorskip("tensorflow")
    output = output_of(start("tensorflow", 2, "global", "keras_refused.py", "training_alone"))
    assert re.search("training_alone: 2: .*trains a model", output), output[-8000:]


@pytest.mark.gate
@pytest.mark.parametrize("arguments", [pytest.param(("plain",), marks=pytest.mark.full), ()])
def test_a_loss_with_the_id_of_another_layers_earlier_one_counts_once_with_jax(arguments):
    pytest.importorskip("jax")
    process = start("jax", 0, "global", "keras_reused_ids.py", *arguments)
    output = output_of(process)
    assert process.returncode == 0, output
