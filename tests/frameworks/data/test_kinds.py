"""Each kind of data on two ranks; see programs/kinds.py, and programs/fits.py for what `fit` makes of it."""

from __future__ import annotations

import pytest
from session.tiers import one_in_gate

pytest.importorskip("tensorflow")
pytest.importorskip("torch")
pytest.importorskip("keras")

pytestmark = pytest.mark.feature_group("Data")


def feature(check, row, backend):
    """A parameter of a test, and what it proves."""
    return pytest.param(check, marks=pytest.mark.feature(row, backend=backend))


@pytest.mark.gate
@pytest.mark.parametrize(
    "check",
    [
        "arrays",
        "batches_of_arrays",
        "ranks_batches_are_the_batch_of_one_process",
        "sequences",
        "streams",
        "shuffled_streams",
        feature("tf_datasets", "tf.data.Dataset", "tensorflow"),
        feature("shuffled_tf_datasets", "seed-stable shuffling", "tensorflow"),
        feature("tf_datasets_of_unknown_length", "data of unknown length", "tensorflow"),
        feature("torch_datasets", "torch Dataset", "torch"),
        feature("torch_loaders", "seed-stable shuffling", "torch"),
        feature("torch_streams", "data of unknown length", "torch"),
        feature("torch_workers_that_live_on_see_each_epoch", "worker processes", "torch"),
        "different_lengths_on_different_ranks",
        "impossible_data",
        "waiting_for_a_python_iterable",
        feature("waiting_for_a_tf_dataset", "warning about slow input", "tensorflow"),
        "waiting_may_be_off_or_wrong",
    ],
)
def test_every_sample_is_taken_once_in_equal_steps(outcomes, check):
    assert outcomes("kinds")[f"kinds.{check}"] == "ok"


@pytest.mark.gate
@pytest.mark.parametrize("backend", one_in_gate("tensorflow", "jax", "torch"))  # of which the test above has the ranks
@pytest.mark.parametrize(
    "check",
    [
        pytest.param("arrays", marks=pytest.mark.feature("fit: arrays")),
        pytest.param("py_dataset", marks=pytest.mark.feature("fit: keras.utils.PyDataset")),
        pytest.param("sequence", marks=pytest.mark.feature("fit: list of samples")),
        pytest.param("generator", marks=pytest.mark.feature("fit: generator")),
        pytest.param("tf_dataset", marks=pytest.mark.feature("fit: tf.data.Dataset")),
        pytest.param("torch_loader", marks=pytest.mark.feature("fit: torch DataLoader")),
        pytest.param(
            "fit_keeps_the_order_of_a_shard_and_all_of_it", marks=pytest.mark.feature("fit keeps a shard's order")
        ),
    ],
)
def test_fit_goes_through_this_ranks_batches(outcomes, backend, check):
    program = "kinds" if backend == "tensorflow" else "fits"
    assert outcomes(program, backend)[f"fits.{check}"] == "ok"
