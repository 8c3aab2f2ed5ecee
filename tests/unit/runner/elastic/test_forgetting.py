"""The launcher of an elastic job forgets processes that are gone: a job of months has thousands of them."""

from types import SimpleNamespace

from distrun.runner.elastic.job import ElasticJob
from distrun.runner.elastic.processes import Processes
from distrun.runner.planning.plan import RankPlan


def test_nothing_is_kept_of_a_process_that_was_gone_when_the_generation_before_began():
    forgotten = []
    planner = SimpleNamespace(spare=lambda number, defaults: RankPlan(number, 0, 1, 0, 1, {}, is_spare=True))
    job = object.__new__(ElasticJob)
    job._processes = Processes({}, planner)
    job._reporter = SimpleNamespace(forget=forgotten.append)
    job._joiners, job._results, job._dead = {}, {}, set()
    for number in range(100):
        job._elastic = SimpleNamespace(alive=frozenset({0, number}))
        job._processes.start_spares({number: "a"}, [])
        job._joiners[number] = job._results[number] = object()
        job._forget_the_dead()
    assert job._processes.known == {0, 98, 99}, "the end of 98 may be reported yet"
    assert job._joiners.keys() == job._results.keys() == {0, 98, 99}
    assert forgotten == list(range(1, 98))
