"""The verdict of a trial of a Keras loss, from the gradients of halves and of the whole."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("keras")

from distrun.auto.keras.trial import verdict


def squares(*gradients):
    """The table that `verdict` is given, of gradients: first half, second, first again, both."""
    columns = [
        [
            np.square(both - (first + second) / 2).sum(),
            np.square(both - (first + second)).sum(),
            np.square(again - first).sum(),
            np.square(first).sum() + np.square(second).sum(),
            np.square(both).sum(),
        ]
        for first, second, again, both in gradients
    ]
    return np.array(columns).T


A, B = np.random.default_rng(0).normal(size=(2, 50))
TINY = 1e-7 * A


@pytest.mark.parametrize(
    ("gradients", "found"),
    [
        ([(A, B, A, (A + B) / 2)], None),
        ([(A, A, A, A), (TINY, TINY, TINY, 3 * TINY)], None),
        ([(A, B, A, A + B)], "adds up"),
        ([(A, A, A, 2 * A)], "adds up"),
        ([(A, A, A, 2 * A), (B, B, B, 3 * B)], "not the mean"),
        ([(A, -A, A, 4 * B)], "not the mean"),
        ([(0 * A, 0 * A, 0 * A, B)], "not the mean"),
        ([(A, B, A, (A + B) / 2), (0 * A, 0 * A, 0 * A, B)], "not the mean"),
        ([(A, B, A, (A + B) / 2), (A / 50, B / 50, A / 50, (A + B) / 50)], "not the mean"),
        ([(A, B, A, (A + B) / 2.2)], "not the mean"),
        ([(A, B, A + 0.3 * B, 0.4 * A + 0.6 * B)], None),
        ([(A, B, A + 0.3 * B, 0.9 * A + 1.2 * B)], "adds up"),
        ([(0 * A, 0 * A, 0 * A, 0 * A)], None),
        ([(np.nan * A, A, A, A)], None),
    ],
)
def test_the_verdict_on_gradients_of_halves(gradients, found):
    said = verdict(squares(*gradients), 0.002)
    assert (said is None) if found is None else found in said
