"""The model: what it can never say, and what it says where the answer is known."""

import random
import statistics
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from distrun.runner.observation.prediction.calibration import between_hosts, within_host
from distrun.runner.observation.prediction.forecast import forecasts, residual
from distrun.runner.observation.prediction.link import Assumptions
from distrun.runner.observation.prediction.model import (
    Network,
    Work,
    host_bytes,
    largest_saving,
    operation,
    slowest,
    step,
    work_of,
)
from distrun.runner.observation.prediction.profile import Gradients, JobProfile, MeasuredLink, StepSeconds
from distrun.runtime.backends.algorithms import choice

TIMES = st.floats(1e-4, 10)
HOSTS = st.integers(1, 512)
PER_HOST = st.integers(1, 16)
# Above the sizes that are sent in one step: where it ends, a few bytes more may take less time, as in distrun itself.
BATCHES = st.lists(st.builds(lambda size, ready: Gradients(size, ready, size), st.floats(2e6, 1e9), TIMES), max_size=6)
WORKS = st.builds(Work, TIMES, TIMES, TIMES, TIMES, st.floats(0, 0.1), BATCHES.map(tuple))
NETWORKS = st.builds(
    Network,
    st.floats(1e8, 4e11),
    st.floats(0.1, 1),
    st.floats(0, 1e-3),
    st.floats(1e8, 1e12),
    st.floats(0, 1e-3),
    st.none() | st.floats(1e8, 1e12),
)


@given(WORKS, HOSTS, PER_HOST, NETWORKS, st.floats(1, 100))
def test_more_bandwidth_is_never_slower(work, hosts, per_host, network, times):
    faster = replace(network, bits_per_s=network.bits_per_s * times)
    assert step(work, hosts, per_host, faster).seconds <= step(work, hosts, per_host, network).seconds


@given(WORKS, HOSTS, PER_HOST, NETWORKS, st.floats(1, 10))
def test_more_bytes_are_never_faster(work, hosts, per_host, network, times):
    larger = tuple(
        replace(batch, bytes=batch.bytes * times, wire_bytes=batch.wire_bytes * times) for batch in work.gradients
    )
    more = step(replace(work, gradients=larger), hosts, per_host, network).seconds
    assert more >= step(work, hosts, per_host, network).seconds


@given(WORKS, HOSTS, PER_HOST, NETWORKS)
def test_a_step_is_never_shorter_than_that_of_a_rank_alone(work, hosts, per_host, network):
    assert step(work, hosts, per_host, network).seconds >= work.alone * (1 - 1e-12)


@given(WORKS, NETWORKS)
def test_a_rank_alone_has_neither_network_nor_stragglers(work, network):
    found = step(work, 1, 1, network)
    assert found.seconds == pytest.approx(work.alone)
    assert (found.network, found.waiting, found.straggling) == (0, 0, 0)
    assert largest_saving(work, 1, 1, network) in ("compute", "input")


@given(WORKS, PER_HOST, NETWORKS, st.floats(1e6, 1e12))
def test_one_host_does_not_use_its_link(work, per_host, network, rate):
    other = replace(network, bits_per_s=rate, latency=1.0)
    assert step(work, 1, per_host, other) == step(work, 1, per_host, network)


@given(WORKS, st.lists(HOSTS, min_size=1), PER_HOST, NETWORKS, st.booleans(), st.integers(1, 64))
def test_no_efficiency_is_above_one(work, hosts, per_host, network, keeps_global_batch, ranks):
    profile = job(work, ranks)
    for found in forecasts(profile, Assumptions(network, 0.1, ()), hosts, per_host, keeps_global_batch):
        assert 0 < found.efficiency <= 1 + 1e-9
        assert found.speedup <= found.ranks * (1 + 1e-9)
        assert found.error >= 0


def job(work, ranks=1, step_seconds=0.0, link=None):
    """A profile whose work is `work`."""
    seconds = StepSeconds(step_seconds, work.forward, work.backward, work.after, work.input)
    return JobProfile(ranks, ranks, 1, 100, seconds, work.deviation, 0.0, "float32", work.gradients, link)


def test_the_work_of_a_profile_is_the_work():
    work = Work(0.1, 0.2, 0.01, 0.02, 0.005, (Gradients(1e6, 0.1, 1e6),))
    assert work_of(job(work)) == work


def test_batches_queue_for_one_wire():
    """Two batches of 1 s each on the wire: the first is ready after 1 s, the second at the end of the backward pass."""
    network = Network(8e6, 1.0, 0.0, 1e15)
    batches = (Gradients(1e6, 1.0, 1e6), Gradients(1e6, 1.5, 1e6))
    found = step(Work(1.0, 1.5, 0.25, 0.5, 0.0, batches), 2, 1, network)
    # input, forward, until the first is ready, two operations, optimizer
    assert found.seconds == pytest.approx(0.5 + 1 + 1 + 1 + 1 + 0.25)
    assert (found.network, found.waiting) == pytest.approx((2, 1.5))


def test_bytes_and_messages_are_those_of_the_backend():
    assert host_bytes(4e6, 4) == 6e6  # a part to and from each other host, twice: 2(n-1)/n
    assert host_bytes(1 << 20, 2) == 1 << 20  # in one step
    assert host_bytes(1000, 8) == 7000
    network = Network(8e6, 0.5, 0.01, 1e15, 0.1)
    assert operation(Gradients(4e6, 0, 4e6), 4, 1, network) == pytest.approx(6e6 / 5e5 + 4 * 0.01 + 0.1)
    assert operation(Gradients(4e6, 0, 2e6), 4, 1, network) == pytest.approx(3e6 / 5e5 + 4 * 0.01 + 0.1)


def test_the_limits_are_those_of_the_backend():
    from distrun.runner.observation.prediction import model

    assert model.ONE_STEP_LIMIT == choice.ONE_STEP_LIMIT
    assert model.ONE_STEP_LIMIT_OF_TWO == choice.ONE_STEP_LIMIT_OF_TWO


def test_a_slow_fabric_is_shared_by_the_hosts():
    network = Network(1e9, 1.0, 0.0, 1e15, fabric_bits_per_s=4e9)
    assert [network.bytes_per_s(hosts) for hosts in (2, 4, 8)] == [1.25e8, 1.25e8, 6.25e7]


def test_what_bounds_a_step():
    network = Network(1e9, 1.0, 0.0, 1e15)
    many = (Gradients(1e9, 0.1, 1e9),)
    assert largest_saving(Work(0.1, 0.2, 0, 0, 0, many), 4, 1, network) == "network"
    assert largest_saving(Work(0.1, 0.2, 0, 1.0, 0, ()), 4, 1, network) == "input"
    assert largest_saving(Work(0.1, 0.2, 0, 0, 0, ()), 4, 1, network) == "compute"


def test_a_kept_batch_is_divided_among_the_ranks():
    work = Work(0.4, 0.8, 0.1, 0.0, 0.0, ())
    assumed = Assumptions(Network(1e9, 1.0, 0.0, 1e15), 0.0, ())
    two, four = forecasts(job(work, 2), assumed, [2, 4], 1, keeps_global_batch=True)
    assert (two.seconds, four.seconds) == pytest.approx((1.3, 0.7))
    assert four.speedup == pytest.approx((2.4 + 0.1) / 0.7)


@pytest.mark.parametrize("count", [2, 8, 64])
def test_the_slowest_is_the_mean_of_the_largest_draw(count):
    draw = random.Random(1).gauss
    found = statistics.fmean(max(draw(0, 1) for _ in range(count)) for _ in range(8000))
    assert slowest(count) == pytest.approx(found, abs=0.05)


@given(st.integers(1, 100_000))
def test_more_ranks_have_a_slower_slowest(count):
    assert 0 <= slowest(count) < slowest(count + 1)


def measured(sizes, taken, **properties):
    """A profile of operations that took so long."""
    batches = tuple(Gradients(size, 0.1, size, seconds) for size, seconds in zip(sizes, taken, strict=True))
    known = {"ranks": 4, "hosts": 4, "ranks_per_host": 1, **properties}
    seconds = StepSeconds(1.0, 0.1, 0.2)
    return JobProfile(
        **known, steps=10, seconds=seconds, jitter=0, spread=0, wire="", gradients=batches, link=MeasuredLink(1e9)
    )


def test_what_operations_cost_is_told_from_what_bytes_cost():
    sizes = [2e6, 8e6, 30e6]
    found = between_hosts(measured(sizes, [0.001 + 1.5 * size / 1e8 for size in sizes]), 0.0)
    assert found.rate == pytest.approx(1e8)
    assert found.overhead == pytest.approx(0.001)
    assert found.deviation == pytest.approx(0, abs=1e-9)


def test_sizes_that_are_alike_tell_the_rate_alone():
    found = between_hosts(measured([2e6, 2e6], [0.03, 0.02]), 0.0)
    assert found.rate == pytest.approx(6e6 / 0.05)
    assert found.overhead == 0
    assert found.deviation > 0.1


def test_ranks_of_one_host_tell_nothing_of_its_link():
    profile = measured([2e6], [0.03], ranks=4, hosts=1, ranks_per_host=4)
    assert between_hosts(profile, 0.0) is None
    assert within_host(profile).rate == pytest.approx(2 * 3 / 4 * 2e6 / 0.03)
    assert between_hosts(measured([2e6], [None]), 0.0) is None


def test_what_the_model_misses_of_the_measured_step_adds_to_the_error():
    work = Work(0.1, 0.2, 0.0, 0.0, 0.0, ())
    network = Network(1e9, 1.0, 0.0, 1e15)
    assumed = Assumptions(network, 0.0, (), network)
    exact, off = (job(work, 2, seconds, MeasuredLink(1e9)) for seconds in (0.3, 0.4))
    assert residual(exact, assumed) == pytest.approx(0)
    assert residual(off, assumed) == pytest.approx(-0.25)
    errors = [forecasts(profile, assumed, [4], 1, False)[0].error for profile in (exact, off)]
    assert errors[1] > 4 * errors[0]
