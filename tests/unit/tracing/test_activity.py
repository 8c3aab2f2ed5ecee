"""Activities of ranks, told from their last events."""

import pytest

from distrun.runner.decisions.failure_report import format_activities
from distrun.tracing import layout
from distrun.tracing.activity import Activity, ActivityDescription, activity
from distrun.tracing.reader import Event

NAMES = ["", "allreduce 'loss'"]
SECOND = 1_000_000_000


def event(kind, begin, end=0, name=0, number=0):
    return Event(begin * SECOND, end * SECOND, 0, 0, kind, name, number, 0, 0)


def describe(*history, now=100):
    return activity(history, NAMES).describe(now * SECOND)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (layout.INPUT, "waiting for its next batch"),
        (layout.FORWARD, "in its forward pass"),
        (layout.BACKWARD, "in its backward pass"),
        (layout.OPTIMIZER, "updating its weights"),
        (layout.SAVING, "writing a checkpoint"),
        (layout.JOINING, "in init(), waiting for the other ranks"),
        (layout.OTHER, "busy with the script's own code"),
    ],
)
def test_each_state_has_its_words(state, words):
    assert describe(event(state, 59)).sentence == f"had been {words} for 41.0 s"


@pytest.mark.parametrize(("number", "words"), [(1, "(1 step done)"), (7, "(7 steps done)")])
def test_steps_are_counted(number, words):
    assert describe(event(layout.STEP, 9, number=number), event(layout.INPUT, 10)).sentence.endswith(words)


def test_whoever_sleeps_for_an_operation_waits_for_it():
    history = event(layout.BACKWARD, 10), event(layout.WAITING, 20, name=1)
    assert describe(*history).sentence == "had been waiting for allreduce 'loss' for 80.0 s"
    assert describe(*history, event(layout.WAITED, 20, 30)).what == "in its backward pass"
    assert describe(*history, event(layout.OPTIMIZER, 31)).what == "updating its weights"


def test_a_script_of_which_only_operations_are_known_is_busy_since_the_last():
    history = (
        event(layout.JOINING, 1),
        event(layout.GENERATION, 2),
        event(layout.OTHER, 2),
        event(layout.DONE, 40, 41, name=1),
    )
    assert describe(*history).sentence == "had been busy with the script's own code for 59.0 s"


def test_nothing_is_said_of_a_rank_of_which_nothing_is_known():
    assert describe() is None
    assert Activity(0, 0, "", 3).describe(7) is None


def test_long_times_are_minutes():
    assert ActivityDescription("in its forward pass", 600.0, 0).sentence == "had been in its forward pass for 10.0 min"


def test_words_survive_the_way_to_the_launcher():
    words = ActivityDescription("waiting for allreduce 'größe'", 1.5, 3)
    assert ActivityDescription.from_json(words.to_json()) == words


def test_ranks_that_do_the_same_share_a_line_and_the_rare_come_first():
    waiting = {rank: ActivityDescription("waiting for allreduce 'loss'", 40.0 + rank / 10, 7) for rank in (0, 1, 2, 4)}
    lines = format_activities({**waiting, 3: ActivityDescription("waiting for its next batch", 41.0, 7)})
    assert lines == [
        "distrun: rank 3 had been waiting for its next batch for 41.0 s (7 steps done)",
        "distrun: ranks 0-2, 4 had been waiting for allreduce 'loss' for 40.4 s (7 steps done)",
    ]


def test_many_activities_are_cut_short():
    lines = format_activities({rank: ActivityDescription("in its forward pass", 1.0, rank) for rank in range(20)})
    assert len(lines) == 9
    assert lines[-1] == "distrun: 12 more activities of ranks are left out"
