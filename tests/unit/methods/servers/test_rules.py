"""Rules of optimizers that follow from others: the rest is compared with torch and Keras where these are."""

import numpy as np
import pytest

from distrun.methods.servers.rules import Rule, applied, slots_of

SGD = {"momentum": 0.9, "dampening": 0.0, "nesterov": True, "weight_decay": 0.0}
NESTEROV = Rule("torch.SGD", {**SGD, "delay": 0})


def run(rule, gradients, rate=0.1):
    """The value after all gradients, from 1."""
    value = np.ones(3, np.float32)
    slots = [np.full(3, initial, np.float32) for initial in slots_of(rule).values()]
    for step, gradient in enumerate(gradients, start=1):
        value, *slots = applied(rule, rate, step, value, np.full(3, gradient, np.float32), slots)
    return value


def test_delayed_nesterov_of_one_worker_is_nesterov():
    gradients = [1.0, -2.0, 0.5, 3.0]
    delayed = Rule("torch.SGD", {**SGD, "delay": 1})
    np.testing.assert_allclose(run(delayed, gradients), run(NESTEROV, gradients), rtol=1e-6)


def test_delayed_nesterov_of_three_workers_is_nesterov_of_the_averages():
    gradients = np.random.default_rng(1).standard_normal(12)
    delayed = Rule("torch.SGD", {**SGD, "delay": 3})
    averages = gradients.reshape(4, 3).mean(axis=1)
    np.testing.assert_allclose(run(delayed, gradients), run(NESTEROV, averages), rtol=1e-5)


@pytest.mark.parametrize("name", ["torch.SGD", "keras.SGD"])
def test_results_are_float32(name):
    assert run(Rule(name, {**SGD, "delay": 0}), [1.0, 2.0]).dtype == np.float32


def test_a_rule_that_there_is_not_is_an_error():
    with pytest.raises(ValueError, match=r"no rule 'torch\.Adamax'"):
        slots_of(Rule("torch.Adamax"))
