"""The profile of a job, from histories whose truth is known."""

from __future__ import annotations

import itertools

import pytest
from histories.training import MS, NAMES, START, History, event, play

from distrun.runner.observation.consumer import Source
from distrun.runner.observation.prediction.profile import MISSING, JobProfile
from distrun.runner.observation.profiling.profiler import MOST_ENTRIES, MOST_STEPS, Profiler
from distrun.tracing.layout import BACKWARD, DONE, FORWARD, GENERATION, HELD, OPTIMIZER, OTHER, STEP, WAITED


def told(history: History, seconds: float, profiler: Profiler | None = None) -> Profiler:
    """Return a profiler that has seen `seconds` of a history."""
    return play(history, seconds, profiler or Profiler(history.size))


def profile_of(profiler: Profiler) -> JobProfile:
    """Return the profile, which there must be."""
    profiled = profiler.profiled()
    assert profiled.profile is not None, profiled.why_not
    return profiled.profile


def tell(profiler: Profiler, rank: int, *events: object, host: str = "h1") -> None:
    """Tell a profiler of events of a rank."""
    profiler.events(Source(rank, rank, host), list(events), NAMES)


def by_hand(profiler: Profiler, steps: int, ranks: int = 2, *, value: int = 0, trials: int = 0) -> None:
    """Tell of steps of 100 ms: 20 ms of the script's own, 60 ms backward, with one operation that takes 8 ms; of 1000
    bytes, but for some trials at the beginning."""
    for rank in range(ranks):
        tell(profiler, rank, event(GENERATION, START, number=1), event(STEP, START, number=1))
    for number in range(steps):
        begin = START + number * 100 * MS
        for rank in range(ranks):
            done = {"submitted": begin + 80 * MS, "name": 1, "number": number + 1}
            done["value"] = 500 if number < trials else 1000
            tell(
                profiler,
                rank,
                event(OTHER, begin),
                event(BACKWARD, begin + 20 * MS, value=value),
                event(DONE, begin + 81 * MS, begin + 88 * MS, **done),
                event(WAITED, begin + 80 * MS, begin + 88 * MS),
                event(OPTIMIZER, begin + 90 * MS),
                event(STEP, begin + 100 * MS, number=number + 2),
            )


def test_where_the_time_of_a_step_goes_and_when_gradients_are_ready():
    # Each step: input 1 ms, forward 20, backward 20 with gradients after 10 and 20 ms, each moved in 3 ms, optimizer 1.
    profile = profile_of(told(History(4, moving_ms=6.0), 10))
    assert (profile.ranks, profile.hosts, profile.ranks_per_host) == (4, 2, 2)
    seconds = profile.seconds
    assert seconds.input == pytest.approx(0.001)
    assert seconds.forward == pytest.approx(0.020)
    assert seconds.backward == pytest.approx(0.020)
    assert seconds.optimizer == pytest.approx(0.001)
    assert seconds.other == 0
    assert seconds.step == pytest.approx(0.045)
    assert seconds.communication == pytest.approx(0.003)
    assert (profile.jitter, profile.spread) == (0, 0)
    assert [batch.ready for batch in profile.gradients] == pytest.approx([0.010, 0.020])
    assert [batch.bytes for batch in profile.gradients] == [4096, 4096]
    assert [batch.seconds for batch in profile.gradients] == pytest.approx([0.003, 0.003])
    assert (profile.wire, profile.link) == ("float32", None)
    assert JobProfile.from_json(profile.to_json(), "here") == profile


def test_operations_count_from_when_the_last_rank_has_their_gradients():
    # Rank 1 computes for 10 ms longer, after which both operations of it take what they take without it.
    late = told(History(2, forward_ms=lambda rank, step: 40.0 + 10.0 * rank, moving_ms=6.0), 10)
    profile = profile_of(late)
    assert [batch.seconds for batch in profile.gradients] == pytest.approx([0.003, 0.003])
    assert profile.spread == pytest.approx(0.005, rel=0.01)
    assert profile.seconds.backward == pytest.approx(0.0225)


def test_a_rank_that_waits_for_its_input_is_a_slow_rank_too():
    profile = profile_of(told(History(2, input_ms=lambda rank, step: 1.0 + 20.0 * rank), 10))
    assert profile.spread == pytest.approx(0.010, rel=0.01)


def test_an_operation_that_waits_for_the_one_before_it_takes_no_longer_by_that():
    # The first one moves for 15 ms, though the second is ready 10 ms after it.
    profile = profile_of(told(History(2, moving_ms=30.0), 10))
    assert [batch.seconds for batch in profile.gradients] == pytest.approx([0.015, 0.015])


def test_steps_that_vary_are_the_jitter():
    lengths = itertools.cycle([30.0, 36.0, 38.0, 40.0, 42.0, 44.0, 50.0])
    chosen = {step: next(lengths) for step in range(1, 10_000)}
    profile = profile_of(told(History(2, forward_ms=lambda rank, step: chosen[step]), 20))
    assert profile.jitter == pytest.approx(0.006, rel=0.1)
    assert profile.spread == pytest.approx(0.0, abs=1e-6)


def test_gradients_in_half_precision_between_hosts():
    profile = profile_of(told(History(2), 2, Profiler(2, "bfloat16")))
    assert [(batch.bytes, batch.wire_bytes) for batch in profile.gradients] == [(4096, 2048)] * 2
    assert profile.wire == "bfloat16"


def test_what_a_script_does_before_the_first_gradient_is_forward_where_no_loader_tells():
    profiler = Profiler(2)
    by_hand(profiler, 10)
    profile = profile_of(profiler)
    assert profile.seconds.forward == pytest.approx(0.020)
    assert profile.seconds.backward == pytest.approx(0.060)
    assert profile.seconds.optimizer == pytest.approx(0.010)
    assert profile.seconds.communication == pytest.approx(0.010)
    assert profile.gradients[0].seconds == pytest.approx(0.007)  # since a rank has begun with it


def test_gradients_that_a_busy_rank_holds_are_ready_when_they_were_submitted():
    profiler = Profiler(2)
    by_hand(profiler, 0)
    for number in range(5):
        begin = START + number * 100 * MS
        both = {"submitted": begin + 60 * MS, "number": number + 1, "value": 10}
        for rank in range(2):
            tell(
                profiler,
                rank,
                event(FORWARD, begin),
                event(BACKWARD, begin + 20 * MS),
                event(HELD, begin + 30 * MS, name=1),
                event(DONE, begin + 61 * MS, begin + 64 * MS, name=1, **both),
                event(DONE, begin + 64 * MS, begin + 67 * MS, name=2, **both),
                event(OPTIMIZER, begin + 70 * MS),
                event(STEP, begin + 100 * MS, number=number + 2),
            )
    profile = profile_of(profiler)
    assert [batch.ready for batch in profile.gradients] == pytest.approx([0.010, 0.040])
    assert profile.seconds.backward == pytest.approx(0.040)


def test_the_operations_that_most_steps_had_are_those_of_the_profile():
    profiler = Profiler(2)
    by_hand(profiler, 12, trials=5)
    profile = profile_of(profiler)
    assert [batch.bytes for batch in profile.gradients] == [1000]
    assert profile.steps == 7


def test_memory_does_not_grow_with_the_length_of_a_job():
    profiler = told(History(4), 30)  # 667 steps
    assert len(profiler._kept) <= MOST_STEPS
    assert profiler._entries == sum(map(len, profiler._kept.values())) <= MOST_ENTRIES
    assert profile_of(profiler).steps > MOST_STEPS / 3


def test_many_ranks_leave_fewer_steps(monkeypatch):
    monkeypatch.setattr("distrun.runner.observation.profiling.profiler.MOST_ENTRIES", 200)
    profiler = told(History(8), 10)
    assert profiler._entries <= 200
    assert profile_of(profiler).seconds.backward == pytest.approx(0.020)


def test_the_last_world_of_an_elastic_job_counts():
    profiler = Profiler(None)
    told(History(4), 5, profiler)
    history = History(2, forward_ms=lambda rank, step: 80.0)
    history.begun = [[event(GENERATION, START, number=2)] for _ in range(2)]
    told(history, 5, profiler)
    tell(profiler, 3, event(STEP, START, number=500))  # of the world before, told late
    profile = profile_of(profiler)
    assert profile.ranks == 2
    assert profile.seconds.backward == pytest.approx(0.040)


@pytest.mark.parametrize(
    ("size", "ranks", "steps", "value", "sentence"),
    [
        (2, 0, 0, 0, "no rank has told what it did"),
        (3, 2, 5, 0, "it had 3 ranks, of which this launcher heard of 2"),
        (1, 1, 5, 0, "a job of one rank reduces no gradients"),
        (2, 2, 0, 0, "no rank has told of two steps"),
        (2, 2, 2, 0, "it has done less than 3 steps that reduced the same gradients"),
        (2, 2, 5, 1, "its gradients were computed by GPUs"),
    ],
)
def test_a_job_without_a_profile_is_told_why(size, ranks, steps, value, sentence):
    profiler = Profiler(size)
    by_hand(profiler, steps, ranks, value=value)
    profiled = profiler.profiled()
    assert profiled.profile is None
    assert profiled.why_not.startswith(sentence)
    assert profiled.to_json() == {MISSING: profiled.why_not}


def test_steps_without_a_backward_pass_make_no_profile():
    profiler = Profiler(2)
    for rank in range(2):
        tell(profiler, rank, event(GENERATION, START, number=1))
        for number in range(5):
            tell(profiler, rank, event(STEP, START + number * MS, number=number + 1))
    assert profiler.profiled().why_not.startswith("no rank has told when a backward pass began")
