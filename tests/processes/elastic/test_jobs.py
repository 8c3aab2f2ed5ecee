"""Elastic jobs of real processes on this machine: ranks, agents and hosts come and go, and training goes on."""

from __future__ import annotations

import os
import re
import signal

import psutil
import pytest
from elastic_training import Training, done, kill
from session.tiers import one_in_gate
from shell import kill_all

from distrun.errors import LaunchError
from distrun.runner.launch.function import run

pytestmark = pytest.mark.gate

# Fails on one rank as long as it has not been restarted often enough.
PLAIN = """
import os, sys, time
if os.environ["RANK"] == "1" and int(os.environ["DISTRUN_RESTART"]) < int(os.environ["FAILURES"]):
    sys.exit(3)
if int(os.environ["DISTRUN_RESTART"]) < int(os.environ["FAILURES"]):
    time.sleep(1000)
print("done", os.environ["RANK"], os.environ["DISTRUN_RESTART"], os.environ["DISTRUN_GENERATION"], flush=True)
"""


@pytest.fixture
def training(distrun, tmp_path):
    return lambda *arguments, **more: Training(distrun, tmp_path, *arguments, **more)


@pytest.mark.parametrize("victim", one_in_gate(0, 1))
def test_a_rank_that_is_killed_is_replaced_and_no_step_is_lost(training, victim):
    trained = training("--elastic", "-np", "3", "-H", "localhost:3")
    before = trained.wait_for_ranks(3)
    kill(before[victim])
    after = trained.wait_for_ranks(3)
    assert len(set(before.values()) & set(after.values())) == 2
    assert (after[0], after[2]) == (before[1 if victim == 0 else 0], before[2])
    last = done(trained.finish())
    assert len(last) == 3
    assert len(set(last.values())) == 1
    assert b"was killed by SIGKILL" in trained.job.stderr.data


def test_it_shrinks_where_it_may_and_grows_again(training):
    trained = training("--min-np", "1", "-np", "3", "-H", "localhost:3")
    before = trained.wait_for_ranks(3)
    victims = [psutil.Process(before[rank]) for rank in (1, 2)]
    trained.job.process.send_signal(signal.SIGSTOP)  # so that it hears of both ends together
    kill_all(victims)
    assert psutil.wait_procs(victims, 60)[1] == []
    trained.job.process.send_signal(signal.SIGCONT)
    assert trained.wait_for_ranks(1) == {0: before[0]}
    after = trained.wait_for_ranks(3)
    assert after[0] == before[0]
    assert len(done(trained.finish())) == 3


@pytest.mark.full
def test_a_replacement_has_the_slot_of_the_one_that_failed(training):
    trained = training("--elastic", "-np", "2", "-H", "localhost:2")
    kill(trained.wait_for_ranks(2)[0])
    trained.wait_for_ranks(2)
    output = trained.finish()
    places = re.findall(rb"at \d+ (\d+) 2 (\d+) ", output)
    assert {(int(rank), int(slot)) for rank, slot in places} == {(0, 0), (1, 1), (0, 1), (1, 0)}


def test_when_an_agent_is_killed_its_ranks_start_anew(training):
    trained = training("--elastic", "-np", "2", "-H", "localhost:2")
    before = trained.wait_for_ranks(2)
    trained.job.agent().kill()
    after = trained.wait_for_ranks(2)
    assert not set(before.values()) & set(after.values())
    assert not any(psutil.pid_exists(pid) for pid in before.values())
    trained.finish()


def test_hosts_and_slots_come_and_go_as_the_script_says(training, tmp_path):
    listing = tmp_path / "hosts"
    listing.write_text("localhost:1\n")
    trained = training("--hosts-from", f"cat {listing}", "--min-np", "1")

    def list_slots(slots: int) -> None:
        (tmp_path / "new").write_text(f"localhost:{slots}\n")
        (tmp_path / "new").replace(listing)

    (first,) = trained.wait_for_ranks(1).values()
    list_slots(3)
    assert first in trained.wait_for_ranks(3).values()
    list_slots(2)
    assert len(trained.wait_for_ranks(2)) == 2
    assert len(done(trained.finish())) == 2


def test_spares_take_over_and_are_replenished(training):
    trained = training("--spares", "1", "-v", "-np", "2", "-H", "localhost:2")
    before = trained.wait_for_ranks(2)
    for number in (1, 2):
        trained.job.stderr.wait_for(b"a spare on localhost started (pid ", number)
        spare = int(re.findall(rb"a spare on localhost started \(pid (\d+)\)", trained.job.stderr.data)[number - 1])
        trained.job.stderr.wait_for(b"a spare on localhost is warm", number)
        kill(before[1])
        before = trained.wait_for_ranks(2)
        assert before[1] == spare
    trained.finish()


def test_a_script_without_elastic_code_is_restarted(distrun, python):
    job = distrun("--max-restarts", "3", "-np", "2", "-H", "localhost:2", *python(PLAIN), FAILURES="2")
    assert job.wait() == 0
    assert sorted(job.stdout.data.splitlines()) == [b"[0] done 0 2 3", b"[1] done 1 2 3"]
    assert job.stderr.data.count(b"exited with code 3") == 2


@pytest.mark.full
def test_a_job_that_fails_too_often_says_why_once_with_the_failure_report(distrun, python):
    job = distrun("--max-restarts", "1", "-np", "2", "-H", "localhost:2", *python(PLAIN), FAILURES="9")
    report = job.ended(3).partition(b"distrun: what has failed:\n")[2].decode()
    assert [line.partition(": ")[0].partition(", ")[2] for line in report.splitlines()[:2]] == [
        "generation 1",
        "generation 2",
    ]
    assert "(pid " in report.splitlines()[2]
    assert "exited with code 3" in report.splitlines()[2]


@pytest.mark.full
def test_output_is_kept_by_rank_through_all_generations(training, tmp_path):
    trained = training("--elastic", "-np", "2", "-H", "localhost:2", "--output-dir", str(tmp_path / "logs"))
    kill(trained.wait_for_ranks(2)[1])
    trained.wait_for_ranks(2)
    trained.finish()
    kept = (tmp_path / "logs" / "rank.1" / "stdout").read_text()
    assert re.findall(r"at (\d) (\d) 2", kept) == [("1", "1"), ("2", "1")]


@pytest.mark.full
def test_ctrl_c_ends_all(training):
    trained = training("--elastic", "--spares", "1", "-np", "2", "-H", "localhost:2")
    trained.wait_for_ranks(2)
    trained.job.process.send_signal(signal.SIGINT)
    assert trained.job.wait() == 130


def test_a_launcher_that_is_killed_takes_all_with_it(training):
    trained = training("--elastic", "--spares", "1", "-np", "2", "-H", "localhost:2")
    trained.wait_for_ranks(2)
    trained.job.process.kill()
    family = trained.job.family()
    psutil.wait_procs(family, 60)
    assert trained.job.family() == []


def test_distrun_run_returns_the_results_of_the_ranks_at_the_end(tmp_path):
    path = tmp_path / "died"

    def train():  # here, so that it is pickled by value: ranks cannot import the tests
        import distrun
        from distrun import elastic

        distrun.init()

        @elastic.run
        def steps(state):
            while state.step < 20:
                distrun.barrier()
                state.step += 1
                state.advance()
                if state.step == 5 and distrun.rank() == 1 and not path.exists():
                    path.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            return distrun.rank(), state.step

        return steps(elastic.ObjectState(step=0))

    assert run(train, np=2, hosts="localhost:2", elastic=True) == [(0, 20), (1, 20)]


@pytest.mark.full
def test_distrun_run_raises_what_the_last_failure_raised():
    def fail():
        raise KeyError("nothing here")

    with pytest.raises((KeyError, LaunchError), match="nothing here"):
        run(fail, np=2, hosts="localhost:2", max_restarts=1)


# Rank 2 raises once, and does not exit before the others have gone on without it.
SLOW_TO_EXIT = """
import atexit, os, sys, time

failed = False

def exit_late():
    while failed and not os.path.exists(os.environ["ON"]):
        time.sleep(0.01)

atexit.register(exit_late)
import numpy
import distrun
from distrun import elastic  # its own exit handler runs before that one

distrun.init()

@elastic.run
def train(state):
    global failed
    if os.environ["DISTRUN_GENERATION"] != "1":
        open(os.environ["ON"], "w").close()
    while state.step < 10:
        if state.step == 5 and os.environ["DISTRUN_PROCESS"] == "2":
            failed = True
            raise RuntimeError("fails once")
        distrun.allreduce(numpy.ones(3), name="t")
        state.step += 1
        state.commit()

train(elastic.ObjectState(step=0))
print("done", flush=True)
"""


def test_a_rank_that_raises_and_takes_its_time_to_exit_costs_one_restart(distrun, python, tmp_path):
    limits = ("--min-np", "2", "--max-restarts", "1")
    job = distrun(*limits, "-np", "3", "-H", "localhost:3", *python(SLOW_TO_EXIT), ON=str(tmp_path / "on"))
    assert job.wait() == 0, job.stderr.data.decode()
    assert job.stdout.data.count(b"done") >= 2
    said = re.findall(rb"^distrun: rank 2 .*restarts are left", job.stderr.data, re.MULTILINE)
    assert len(said) == 1, job.stderr.data.decode()
    assert re.search(
        rb"raised RuntimeError: fails once at .* in train: generation 2 goes on with 2 ranks; 0 of 1", said[0]
    )


ALWAYS_FAILS = """
import numpy, distrun
from distrun import elastic

distrun.init()

@elastic.run
def train(state):
    for state.step in range(4):
        distrun.allreduce(numpy.ones(3), name="t")
        state.commit()
    raise RuntimeError("always")

train(elastic.ObjectState(step=0))
"""


@pytest.mark.full
def test_ranks_that_fail_in_the_same_place_each_time_end_the_job(distrun, python):
    job = distrun("--elastic", "-np", "2", "-H", "localhost:2", *python(ALWAYS_FAILS))
    assert b"the ranks of 3 generations in a row have failed so (RuntimeError at " in job.ended(1)


@pytest.mark.full
@pytest.mark.parametrize("spares", ["0", "1"])
def test_who_waits_in_init_fails_at_once_when_another_rank_has_ended_before(distrun, python, spares):
    code = "import os, sys, distrun\nif os.environ['RANK'] == '1': sys.exit(0)\ndistrun.init()"
    assert re.search(
        rb"rank 0 on localhost \(pid \d+\) cannot go on, since another rank has ended already: rank 1 on localhost "
        rb"\(pid \d+\) exited with code 0 before it joined the others in init\(\)\n",
        distrun("--elastic", "--spares", spares, "-np", "2", "--start-timeout", "1000", *python(code)).ended(1),
    )
