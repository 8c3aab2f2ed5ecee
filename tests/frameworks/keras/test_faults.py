"""A fault on one rank is soon an error on every rank, which says what it is; the job can go on."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.feature_group("Keras")


@pytest.mark.gate
@pytest.mark.backends("tensorflow", "jax", "torch", "tf_keras")
@pytest.mark.behaviours("ranks with different models")
def test_ranks_with_different_models_are_told_the_layer(ranks):
    for error, goes_on in ranks:
        assert "MismatchError: the trainable variables of the model differ between the ranks, first in place 0" in error
        assert "narrow/kernel [6, 4] float32 on rank 0" in error
        assert "narrow/kernel [6, 5] float32 on rank 1" in error
        assert goes_on


@pytest.mark.behaviours("ranks with different models, one of them known")
def test_so_they_are_when_one_rank_has_trained_such_a_model_before(ranks):
    for error, goes_on in ranks:
        assert "MismatchError: the trainable variables of the model differ between the ranks, first in place 2" in error
        assert goes_on


@pytest.mark.gate
@pytest.mark.backends("tensorflow", "jax")
@pytest.mark.behaviours("gradients of different variables")
def test_gradients_of_different_variables_are_not_added_up(ranks):
    for error, _ in ranks:
        assert "MismatchError: the trainable variables of the model differ between the ranks, first in place 0" in error
        assert "first [2] float32 on rank 0; first [2] float32 without gradient on rank 1" in error


@pytest.mark.gate
@pytest.mark.backends("torch")
@pytest.mark.behaviours("gradients of different variables")
def test_on_torch_a_gradient_that_a_rank_does_not_have_counts_as_zero(ranks):
    for error, values in ranks:
        assert error == ""
        assert values == [[0.5, 0.5], [0.0, 0.0]]


@pytest.mark.behaviours("ranks with different optimizers, broadcast")
def test_ranks_with_different_optimizers_are_told_when_they_broadcast(ranks):
    for error, goes_on in ranks:
        assert "MismatchError: the variables to broadcast differ between the ranks" in error
        assert goes_on


@pytest.mark.behaviours("callbacks that meet, on one rank")
def test_ranks_with_different_callbacks_are_told(ranks):
    for errors, goes_on in ranks:
        for error in errors:
            assert error.startswith("MismatchError: the ranks are not at the same place of fit: ")
            assert "give all ranks the same callbacks" in error
        assert goes_on


@pytest.mark.gate
@pytest.mark.behaviours(
    "fewer steps on one rank",
    pytest.param("one rank stops early", marks=pytest.mark.full),
    pytest.param("fewer steps on one rank, metrics averaged", marks=pytest.mark.full),
    pytest.param("fewer steps on one rank, run_eagerly", marks=pytest.mark.full),
)
@pytest.mark.feature("ranks at different places of fit: an error on all")
def test_ranks_at_different_places_of_fit_are_told_where_they_are(ranks, behaviour):
    for error, goes_on in ranks:
        assert error.startswith("MismatchError: the ranks are not at the same place of fit: ")
        assert "rank 1 is at the end of an epoch of fit" in error
        assert "give all ranks the same callbacks, steps and epochs" in error
        assert goes_on
    if "fewer" in behaviour:
        assert "this is rank 1, at the end of epoch 1, after 3 steps" in ranks[1][0]
    else:
        assert "this is rank 1, at the end of fit, after epoch 1" in ranks[1][0]


@pytest.mark.gate
@pytest.mark.feature("an exception on one rank: an error on all")
@pytest.mark.behaviours("an exception in a callback on one rank")
def test_ranks_are_told_of_an_exception_on_one_of_them(ranks):
    (told, goes_on), (raised, also) = ranks
    assert "rank 1 is at step 3 of epoch 1, where fit failed with ValueError: a fault of the user's own" in told
    assert told.endswith("look there for the cause")
    assert raised == "ValueError: a fault of the user's own"
    assert goes_on
    assert also


@pytest.mark.behaviours("an exception on one rank before its first step")
def test_so_they_are_before_its_first_step(ranks):
    (told, goes_on), (raised, also) = ranks
    for error in told:
        assert error.startswith("MismatchError: the ranks are not at the same place of fit: ")
        assert "where fit failed with ValueError: " in error
    assert all(error.startswith("ValueError: ") for error in raised)
    assert goes_on
    assert also


@pytest.mark.behaviours("training of one rank alone")
def test_a_plain_model_of_one_rank_is_nobody_elses_concern(ranks):
    assert ranks == [["", True], ["", True]]
