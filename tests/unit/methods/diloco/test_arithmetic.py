"""Outer steps are those of SGD with Nesterov momentum, however they are cut into pieces."""

import numpy as np
from hypothesis import given, strategies as st

from distrun.methods.diloco.parameters import nesterov


@given(st.integers(0, 50), st.integers(1, 60), st.floats(0.1, 2), st.floats(0, 0.99), st.integers(0, 2**32 - 1))
def test_a_step_is_that_of_the_formula(count, piece, rate, momentum, seed):
    numbers = np.random.default_rng(seed)
    anchor, velocity = numbers.normal(size=(2, count))
    expected, momenta = anchor.copy(), velocity.copy()
    for _ in range(3):
        gradient = numbers.normal(size=count)
        momenta = momentum * momenta + gradient
        expected -= rate * (gradient + momentum * momenta)
        nesterov(anchor, gradient.copy(), velocity, rate, momentum, piece)
    assert np.allclose(anchor, expected)
    assert np.allclose(velocity, momenta)


def test_without_a_velocity_a_step_is_plain():
    anchor = np.array([1.0, 2.0])
    nesterov(anchor, np.array([1.0, -1.0]), None, 0.5, 0.0, 1)
    assert anchor.tolist() == [0.5, 2.5]
