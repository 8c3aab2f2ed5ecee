"""States in a world of one: commits, boundaries, callbacks, errors."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import distrun
from distrun import elastic
from distrun.elastic.donor import NEW
from distrun.elastic.graphs import HostArrays
from distrun.elastic.part import Part
from distrun.errors import BootstrapError, JobAbortedError, MismatchError, UsageError
from distrun.runtime.world import regroup


@pytest.fixture(autouse=True)
def _world():
    distrun.init()
    yield
    distrun.shutdown()


class Weights(Part):
    """An array that says by itself whether it is clean."""

    def __init__(self, array):
        self.array = array
        self.has_changed = False
        self.copy = array
        self.is_abandoned = False

    def save(self):
        self.copy = self.array.copy()

    def restore(self):
        self.array[:] = self.copy
        self.has_changed = False

    def mark(self):
        self.has_changed = False

    def is_clean(self):
        return not self.has_changed

    def abandon(self):
        self.is_abandoned = True

    def describe(self):
        return self.array.shape


class WeightsState(elastic.ObjectState):
    """A state with parts for arrays."""

    def part_of(self, name, value):
        return Weights(value) if isinstance(value, np.ndarray) else None


class Arrays(HostArrays):
    """An array in host memory."""

    def __init__(self, array):
        super().__init__()
        self.array = array

    def entries(self):
        return [f"the array {list(self.array.shape)}"]

    def values(self):
        return [self.array]

    def assign(self, arrays):
        (self.array,) = arrays


def test_an_attribute_may_be_a_part_itself():
    state = elastic.ObjectState(weights=Weights(np.zeros(2)))
    state.commit()
    state.weights.array += 1
    state.restore()
    assert state.weights.array.tolist() == [0, 0]


def test_a_rank_that_was_to_take_anothers_arrays_may_be_the_next_donor():
    part = Arrays(np.arange(2.0))
    part.adopt(part.entries())
    part.tensors()[0][:] = 7  # the half of a state, for then the donor was gone
    assert part.describe() == part.entries()
    (sent,) = part.tensors()
    assert sent is part.array
    part.stay()
    part.complete()
    assert part.array is sent


def test_a_training_function_is_called_once_where_nobody_can_regroup():
    @elastic.run
    def train(state, factor, *, offset):
        """Train."""
        assert isinstance(state, elastic.ObjectState)
        return state.epoch * factor + offset

    assert train.__doc__ == "Train."
    assert train(elastic.ObjectState(epoch=3), 2, offset=1) == 7


def test_objects_are_attributes_that_go_back_to_the_last_commit():
    state = elastic.ObjectState(epoch=1, seen=[1])
    state.commit()
    state.epoch = 2
    state.seen.append(2)
    for _ in range(2):
        state.restore()
        assert (state.epoch, state.seen) == (1, [1])
        state.seen.append(3)


def test_a_state_without_a_copy_is_refused_where_it_is_to_be_restored():
    state = elastic.ObjectState(epoch=1)
    state.sync()
    with pytest.raises(UsageError, match=r"ObjectState.restore\(\): there is no copy to go back to: call commit\(\)"):
        state.restore()
    state.save()
    state.epoch = 2
    state.restore()
    assert state.epoch == 1


def test_sync_commits_in_horovods_mode(monkeypatch):
    monkeypatch.setenv("DISTRUN_HOROVOD", "1")
    state = WeightsState(weights=np.zeros(2), epoch=1)
    state.sync()
    state.weights += 1
    state._parts["weights"].has_changed = True
    state.epoch = 2
    state.recover(is_aborted=True)
    assert (state.weights.tolist(), state.epoch) == ([0, 0], 1)
    state.epoch = 3
    state.restore()
    assert state.epoch == 1


def test_an_attribute_that_would_hide_a_method_is_refused():
    with pytest.raises(UsageError, match="begin= would hide the method begin of ObjectState: give the attribute"):
        elastic.ObjectState(epoch=0, begin=1)


def test_horovods_arguments_are_taken_by_position():
    state = elastic.ObjectState(distrun.broadcast_object, distrun.rank, epoch=1)
    state.sync()
    assert state.epoch == 1


def test_a_planned_change_is_raised_at_each_kind_of_boundary(monkeypatch):
    state = elastic.ObjectState(epoch=1)
    state.advance()
    monkeypatch.setattr(regroup, "planned", lambda: "host h2 has come")
    for boundary in (state.advance, state.check_host_updates, state.commit):
        with pytest.raises(elastic.HostsUpdatedInterrupt):
            boundary()
    state.epoch = 2
    state.restore()
    assert state.epoch == 1  # commit had made its copy before


def test_who_is_clean_loses_nothing(caplog):
    state = WeightsState(weights=np.zeros(2))
    state.sync()
    state.weights += 1
    state.advance()
    state.recover(is_aborted=True)
    state.elect()
    assert state.weights.tolist() == [1, 1]
    assert not caplog.records


def test_who_is_in_the_middle_of_a_step_goes_back_to_the_last_commit(caplog):
    state = WeightsState(weights=np.zeros(2), epoch=0)
    state.sync()
    state.commit()
    state.weights += 1
    state.epoch = 1
    part = state._parts["weights"]
    part.has_changed = True
    state.recover(is_aborted=True)
    assert part.is_abandoned
    assert (state.weights.tolist(), state.epoch) == ([0, 0], 0)
    state.elect()
    assert not caplog.records


def test_who_has_no_copy_either_goes_on_and_says_so(monkeypatch, caplog):
    monkeypatch.setattr(logging.getLogger("distrun"), "propagate", True)
    state = WeightsState(weights=np.zeros(2))
    state.sync()
    state.weights += 1
    state._parts["weights"].has_changed = True
    state.recover(is_aborted=True)
    state.elect()
    assert state.weights.tolist() == [1, 1]
    assert "call state.advance() right after optimizer.step()" in caplog.text


def test_what_callbacks_do_does_not_count_as_half_a_step(caplog):
    state = WeightsState(weights=np.zeros(2))
    state.sync()
    state.advance()
    state.recover(is_aborted=True)
    state._parts["weights"].has_changed = True  # Horovod's example of Keras trains for a step there
    state.elect()
    state.sync()
    assert not caplog.records
    assert not state._parts["weights"].has_changed


def test_what_was_committed_before_the_training_began_is_void():
    state = elastic.ObjectState(epoch=1)
    state.commit()
    state.begin()
    assert (state._boundaries, state._committed) == (NEW, NEW)


def test_callbacks_follow_reset():
    calls = []

    class Resetting(elastic.ObjectState):
        def reset(self):
            calls.append("reset")

    state = Resetting()
    state.register_reset_callbacks([lambda: calls.append("first")])
    state.register_reset_callbacks((lambda: calls.append("second"),))
    state.on_reset()
    assert calls == ["reset", "first", "second"]


def raised(error, cause=None, context=None):
    error.__cause__, error.__context__ = cause, context
    error.__suppress_context__ = cause is not None
    return error


@pytest.mark.parametrize(
    ("error", "is_abort"),
    [
        (JobAbortedError("rank 1 is gone"), True),
        (BootstrapError("rank 1 did not come"), True),
        (MismatchError("other shapes"), False),
        (ValueError("no"), False),
        (raised(RuntimeError("training failed"), cause=JobAbortedError("rank 1 is gone")), True),
        (raised(RuntimeError("cannot clean up"), context=JobAbortedError("rank 1 is gone")), True),
        (raised(ValueError("no"), cause=TypeError("no"), context=JobAbortedError("rank 1 is gone")), False),
    ],
)
def test_an_error_is_an_abort_if_distruns_own_is_behind_it(error, is_abort):
    assert elastic.State().is_abort(error) == is_abort


def test_a_state_of_ones_own_may_have_horovods_methods_only():
    calls = []

    class Own(elastic.State):
        def save(self):
            calls.append("save")

        def restore(self):
            calls.append("restore")

        def sync(self):
            calls.append("sync")

    state = Own()
    elastic.run(lambda state: state.commit())(state)
    state.recover(is_aborted=False)
    state.recover(is_aborted=True)
    state.elect()
    assert calls == ["sync", "save", "restore"]
    for method in ("save", "restore", "sync"):
        with pytest.raises(NotImplementedError, match=f"^State has no {method}: let it"):
            getattr(elastic.State(), method)()


class Place:
    """A place in the data, as `distrun.data` has them."""

    def __init__(self):
        self.fetched = self.done = 0

    def advance(self):
        self.done = self.fetched

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = self.fetched = state["done"]


def test_what_tells_its_state_by_itself_hears_of_boundaries_and_of_no_other_thing():
    state = elastic.ObjectState(place=Place())
    state.sync()
    state.place.fetched = 3
    assert state.place.done == 0
    state.commit()
    assert state.place.done == 3
    state.place.fetched = 5
    state.advance()
    assert state.place.done == 5
    state.restore()
    assert state.place.done == 3


def test_a_place_in_the_data_goes_on_after_sync_on_the_donor_as_on_the_others():
    state = elastic.ObjectState(place=Place())
    state.place.fetched = 3
    state.commit()
    state.place.fetched = 5
    state.sync()
    assert state.place.fetched == state.place.done == 3
