"""Ranks that all fail, again and again: they are started again later each time, and not for ever."""

import pytest
from histories.elastic import running

from distrun.runner.decisions.policy import State


def fail_all(job, site="train.py:7 in train", step=3):
    """All scripts raise, and all processes exit; then the time passes until the job has begun or ended something."""
    number = job.generation.number
    for process in job.processes:
        job.raise_error(process, site, step)
    for process in job.processes:
        job.exit(process, 1)
    while job.policy.state is State.REGROUPING:
        job.at(job.policy.deadline)
    if job.generation.number > number:
        job.meet()


def test_ranks_that_all_fail_in_the_same_place_are_started_twice_more():
    job = running("a2", 2)
    for _ in range(3):
        fail_all(job)
    assert job.generation.number == 3
    assert job.policy.failure.what == (
        "raised ValueError: no more data at train.py:7 in train; the ranks of 3 generations in a row have failed so "
        "(ValueError at train.py:7 in train, after 3 steps), and are not started again (--max-restarts N starts them N "
        "times all the same)"
    )


@pytest.mark.parametrize("is_given", [False, True])
def test_ranks_that_all_fail_are_started_again_later_each_time(is_given):
    job = running("a2", 2, gives_up_early=not is_given)
    begun = []
    for step in range(9):
        fail_all(job, step=0 if is_given else step)
        begun.append(round(job.now))
    assert begun == [0, 2, 6, 14, 30, 62, 122, 182, 242]
    said = "\n".join(job.said)
    assert "train.py:7 in train: all ranks start again in 4 s, after 3 failures in a row\n2 ranks start again" in said


def test_a_generation_that_lasts_is_followed_by_the_next_at_once():
    job = running("a2", 2)
    for step in range(5):
        job.now += 3600.0
        fail_all(job, step=step)
    assert job.now < 5 * 3600 + 1
    assert not [text for text in job.said if "in a row" in text]


def test_what_comes_from_outside_is_no_reason_to_wait():
    job = running("a2", 2)
    for _ in range(6):
        for process in job.processes:
            job.kill(process)
        job.at(job.policy.deadline)
        job.meet()
    assert job.generation.number == 7
    assert job.now < 1


def test_survivors_make_the_next_failure_a_first_one():
    job = running("a2", 2, min_np=1, cooldown=(0.0, 0.0))
    fail_all(job)
    fail_all(job)
    job.kill(job.processes[1])
    job.leave(job.processes[0])
    job.at(job.policy.deadline)
    job.meet()
    fail_all(job)
    assert job.policy.failure is None


def test_ranks_that_fail_in_different_places_are_started_again():
    job = running("a2", 2)
    for _ in range(4):
        first, second = job.processes
        job.raise_error(first, "train.py:7 in train")
        job.raise_error(second, "train.py:9 in train")
        job.exit(first, 1)
        job.exit(second, 1)
        job.at(job.policy.deadline)
        while job.policy.state is State.REGROUPING:
            job.at(job.policy.deadline)
        job.meet()
    assert job.policy.failure is None


def test_a_script_without_elastic_code_fails_so_when_one_rank_does():
    job = running("a2", 2, enrolled=False)
    for attempt in range(3):
        first, second = job.processes
        job.raise_error(first)
        job.exit(first, 1)
        job.exit(second, -15)
        while job.policy.state is State.REGROUPING:
            job.at(job.policy.deadline)
        if attempt < 2:
            job.meet(enrolled=False)
    assert "3 generations in a row" in job.policy.failure.what
