"""The verdict of a trial of a Keras loss, from the gradients of halves and of the whole."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("keras")

import keras

from distrun.auto.keras import losses, metrics, steps
from distrun.auto.keras.trial import verdict

pytestmark = pytest.mark.gate


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


def own(y_true, y_pred):
    return keras.ops.mean(y_true - y_pred, axis=-1)


@pytest.mark.parametrize(
    ("loss", "is_known"),
    [
        ("mse", True),
        (keras.losses.SparseCategoricalCrossentropy(), True),
        (keras.losses.Dice(), False),
        (keras.losses.Circle(), False),
        (keras.losses.tversky, False),
        (own, False),
        (type("Own", (keras.losses.Huber,), {"__module__": __name__})(), False),
    ],
)
def test_losses_of_keras_that_take_each_row_alone_are_known(loss, is_known):
    loss = keras.losses.get(loss)
    wrapped = loss if isinstance(loss, keras.losses.Loss) else keras.src.losses.losses.LossFunctionWrapper(loss)
    assert losses.is_of_each_row(wrapped) == is_known


def test_what_has_no_module_is_not_keras_s():
    assert steps.are_of_keras(None, keras.layers.Dense, keras.activations.relu)
    assert not steps.are_of_keras(type("Builtin", (), {"__module__": None})())


@pytest.mark.parametrize(
    ("function", "is_mean"),
    [
        (own, True),
        (lambda y_true, y_pred: keras.ops.mean(y_true * y_pred), True),
        (lambda y_true, y_pred: keras.ops.sqrt(keras.ops.mean(keras.ops.square(y_true - y_pred))), False),
        (lambda y_true, y_pred: keras.ops.max(y_pred), False),
    ],
)
def test_a_metric_function_that_is_no_mean_over_rows_is_warned_of(function, is_mean, monkeypatch):
    said = []
    monkeypatch.setattr(metrics, "tell", said.append)
    monkeypatch.setattr(metrics.world, "rank", lambda: 0)
    metrics.note([keras.metrics.MeanMetricWrapper(function, name="own")], np.ones((8, 2), "float32"), np.ones((8, 2)))
    metrics.check()
    assert len(said) == (not is_mean)
    assert is_mean or "the metric own is one number for a batch, and no mean over its rows" in said[0]
