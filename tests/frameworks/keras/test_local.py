"""Layers that stay local, and compressors of the user's, in both Kerases."""

from __future__ import annotations

import pytest

pytestmark = [
    pytest.mark.feature_group("Keras"),
    pytest.mark.backends("tensorflow", "jax", "torch", "tf_keras"),
]


@pytest.mark.gate
@pytest.mark.feature("local layers")
@pytest.mark.behaviours("local layers")
def test_gradients_of_local_layers_stay_on_their_rank_and_the_others_are_averaged(ranks):
    for rank in ranks:
        assert rank.keys() == {"True", "False"}  # scale_local_gradients
        for is_shared, distance, distance_of_own, is_local_shared in rank.values():
            assert (is_shared, is_local_shared) == (True, False)
            assert distance < 1e-6
            assert distance_of_own < 1e-6


@pytest.mark.feature("local layers")
@pytest.mark.behaviours("local layers, built later")
def test_layers_may_be_built_after_they_were_declared_local(ranks):
    assert ranks == [[True, False]] * 2


@pytest.mark.gate
@pytest.mark.feature("compressors of one's own")
@pytest.mark.behaviours("a compressor of one's own")
def test_a_compressor_of_the_users_is_called(ranks):
    for rank in ranks:
        assert rank == {"same": True, "called": True, "value": 1.5}
