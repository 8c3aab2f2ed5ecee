"""A fault on one rank is soon an error on every rank, which says what it is; the job can go on."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.feature_group("Keras")


def test_ranks_with_different_models_are_told_the_layer(outcome, backend):
    for error, goes_on in outcome(backend, "ranks with different models"):
        assert "MismatchError: the trainable variables of the model differ between the ranks, first in place 0" in error
        assert "narrow/kernel [6, 4] float32 on rank 0" in error
        assert "narrow/kernel [6, 5] float32 on rank 1" in error
        assert goes_on


def test_so_they_are_when_one_rank_has_trained_such_a_model_before(outcome, backend):
    for error, goes_on in outcome(backend, "ranks with different models, one of them known"):
        assert "MismatchError: the trainable variables of the model differ between the ranks, first in place 2" in error
        assert goes_on


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_gradients_of_different_variables_are_not_added_up(outcome, backend):
    for error, _ in outcome(backend, "gradients of different variables"):
        assert "MismatchError: the trainable variables of the model differ between the ranks, first in place 0" in error
        assert "first [2] float32 on rank 0; first [2] float32 without gradient on rank 1" in error


def test_on_torch_a_gradient_that_a_rank_does_not_have_counts_as_zero(outcome):
    for error, values in outcome("torch", "gradients of different variables"):
        assert error == ""
        assert values == [[0.5, 0.5], [0.0, 0.0]]


def test_ranks_with_different_optimizers_are_told_when_they_broadcast(outcome, backend):
    for error, goes_on in outcome(backend, "ranks with different optimizers, broadcast"):
        assert "MismatchError: the variables to broadcast differ between the ranks" in error
        assert goes_on


def test_ranks_with_different_callbacks_are_told(outcome, backend):
    for errors, goes_on in outcome(backend, "callbacks that meet, on one rank"):
        for error in errors:
            assert error.startswith("MismatchError: the ranks are not at the same place of fit: ")
            assert "give all ranks the same callbacks" in error
        assert goes_on


@pytest.mark.parametrize(
    "fault",
    [
        "fewer steps on one rank",
        "fewer steps on one rank, metrics averaged",
        "fewer steps on one rank, run_eagerly",
        "one rank stops early",
    ],
)
@pytest.mark.feature("ranks at different places of fit: an error on all")
def test_ranks_at_different_places_of_fit_are_told_where_they_are(outcome, backend, fault):
    ranks = outcome(backend, fault)
    for error, goes_on in ranks:
        assert error.startswith("MismatchError: the ranks are not at the same place of fit: ")
        assert "rank 1 is at the end of an epoch of fit" in error
        assert "give all ranks the same callbacks, steps and epochs" in error
        assert goes_on
    if "fewer" in fault:
        assert "this is rank 1, at the end of epoch 1, after 3 steps" in ranks[1][0]
    else:
        assert "this is rank 1, at the end of fit, after epoch 1" in ranks[1][0]


@pytest.mark.feature("an exception on one rank: an error on all")
def test_ranks_are_told_of_an_exception_on_one_of_them(outcome, backend):
    (told, goes_on), (raised, also) = outcome(backend, "an exception in a callback on one rank")
    assert "rank 1 is at step 3 of epoch 1, where fit failed with ValueError: a fault of the user's own" in told
    assert told.endswith("look there for the cause")
    assert raised == "ValueError: a fault of the user's own"
    assert goes_on
    assert also


def test_so_they_are_before_its_first_step(outcome, backend):
    (told, goes_on), (raised, also) = outcome(backend, "an exception on one rank before its first step")
    for error in told:
        assert error.startswith("MismatchError: the ranks are not at the same place of fit: ")
        assert "where fit failed with ValueError: " in error
    assert all(error.startswith("ValueError: ") for error in raised)
    assert goes_on
    assert also


def test_a_plain_model_of_one_rank_is_nobody_elses_concern(outcome, backend):
    assert outcome(backend, "training of one rank alone") == [["", True], ["", True]]
