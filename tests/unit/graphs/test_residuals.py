"""Losses of gradients that graphs reduce, by PowerSGD in a world of one rank: whose they are, and when they count."""

import numpy as np
import pytest

import distrun
from distrun.graphs import residuals as residuals
from distrun.graphs.error_feedback import ErrorFeedback
from distrun.graphs.prepared import prepare
from distrun.runtime.collectives.call import Call
from distrun.runtime.world import world

SHAPES = (30, 40), (20, 50)
GRADIENTS = [np.random.default_rng(place).standard_normal(shape, np.float32) for place, shape in enumerate(SHAPES)]
ENTRIES = ["a (30, 40) float32", "b (20, 50) float32"]


@pytest.fixture(autouse=True)
def world_of_one():
    residuals.load({})
    distrun.init()
    yield
    distrun.shutdown()
    residuals.load({})


def call(name="gradients.0", wire="powersgd(2)", first=0):
    return residuals.named(Call("allreduce", name, wire=wire, is_gradient=True), ENTRIES)._replace(first=first)


def reduced(collective, places=(0, 1)):
    """Return the results for the gradients at these places."""
    inputs = [GRADIENTS[place].reshape(-1) for place in places]
    outputs = [np.empty_like(array) for array in inputs]
    prepare(collective, ("float32",) * len(places), tuple([SHAPES[place] for place in places])).reduce(inputs, outputs)
    return [output.reshape(SHAPES[place]) for output, place in zip(outputs, places, strict=True)]


def owed():
    """Return the residuals by place."""
    found = residuals.residuals()
    assert len(found) <= 1
    return {place: loss.lost for places in found.values() for place, loss in places.items()}


def test_results_and_what_is_owed_are_the_sum_of_the_gradients():
    total = sum(reduced(call())[0] for _ in range(3))
    np.testing.assert_allclose(total + owed()[0], 3 * GRADIENTS[0], atol=1e-4)


def test_other_calls_for_the_same_list_make_up_for_it_in_the_next_world():
    total = reduced(call())[1]
    distrun.shutdown()
    distrun.init()
    assert set(owed()) == {0, 1}
    total = total + reduced(call("gradients.0.1", first=1), [1])[0]
    np.testing.assert_allclose(total + owed()[1], 2 * GRADIENTS[1], atol=1e-4)
    before = owed()[0]
    np.testing.assert_allclose(reduced(call(wire="int4"), [0])[0], GRADIENTS[0] + before, atol=1e-5)
    assert set(owed()) == {1}


@pytest.mark.parametrize("is_made", [True, False])
def test_in_an_elastic_job_a_step_counts_at_the_next_boundary(monkeypatch, is_made):
    monkeypatch.setattr(world, "is_elastic", lambda: True)
    reduced(call())
    residuals.settle()
    before = owed()
    (result, _) = reduced(call())
    np.testing.assert_array_equal(owed()[0], before[0])
    (residuals.settle if is_made else residuals.discard)()
    expected = before[0] + (GRADIENTS[0] - result if is_made else 0)
    np.testing.assert_allclose(owed()[0], expected, atol=1e-4)


def test_a_step_that_another_follows_was_made(monkeypatch):
    monkeypatch.setattr(world, "is_elastic", lambda: True)
    (result, _), _ = reduced(call()), reduced(call())
    np.testing.assert_allclose(owed()[0], GRADIENTS[0] - result, atol=1e-4)


def test_calls_without_such_compression_have_none():
    assert not call(wire="").gradients
    reduced(call(wire=""))
    assert not residuals.are_kept()


def test_what_was_saved_replaces_what_there_is():
    reduced(call())
    feedback = ErrorFeedback()
    with feedback.complete_state():
        saved = feedback.state_dict()
    before = owed()
    reduced(call())
    feedback.load_state_dict(saved)
    np.testing.assert_array_equal(owed()[0], before[0])
    feedback.load_state_dict({})
    assert not owed()


def test_what_was_saved_is_dropped_with_a_warning_where_nothing_is_compressed_any_more():
    reduced(call())
    feedback = ErrorFeedback()
    with feedback.complete_state():
        saved = feedback.state_dict()
    distrun.shutdown()
    residuals.load({})
    distrun.init()
    feedback.load_state_dict(saved)
    with pytest.warns(
        UserWarning, match="residuals that the checkpoint holds for these gradients, which this run does not"
    ):
        plain = call(wire="")
    np.testing.assert_array_equal(reduced(plain)[0], GRADIENTS[0])
    assert not residuals.are_kept()
    call(wire="")  # does not warn again
