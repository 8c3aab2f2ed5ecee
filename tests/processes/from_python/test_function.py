"""`distrun.run`: functions out, results and exceptions back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import psutil
import pytest
from session.tiers import one_in_gate

from distrun.errors import LaunchError
from distrun.runner.job.calls import RemoteTraceback
from distrun.runner.launch.function import run

pytestmark = pytest.mark.gate


@pytest.fixture
def assert_no_children() -> Callable[..., None]:
    """Asserts that this process has no more children than before the test, when Slurm's daemons may be among them."""
    before = set(psutil.Process().children())

    def check(*expected: psutil.Process) -> None:
        assert set(psutil.Process().children()) == before | set(expected)

    return check


def test_results_come_back_in_rank_order(assert_no_children):
    def place(greeting, *, mark):
        return greeting, int(os.environ["RANK"]), mark

    assert run(place, ("hi",), {"mark": "!"}, np=3) == [("hi", rank, "!") for rank in range(3)]
    assert_no_children()


@pytest.mark.full
def test_large_arguments_and_results_survive():
    data = os.urandom(10_000_000)
    assert run(lambda value: value[::-1], (data,), np=2) == [data[::-1]] * 2


def test_the_exception_of_a_rank_is_raised_as_the_object_it_was(capfd, assert_no_children):
    def fail():
        if os.environ["RANK"] == "1":
            raise KeyError("no such sample", 7)
        signal.pause()

    with pytest.raises(KeyError) as caught:
        run(fail, np=2)
    assert caught.value.args == ("no such sample", 7)
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "on rank 1:" in str(caught.value.__cause__)
    assert "in fail" in str(caught.value.__cause__)
    assert_no_children()


def test_tracebacks_of_ranks_are_in_the_exception_and_in_files_but_not_on_stderr(capfd, tmp_path):
    def fail():
        print("before", file=sys.stderr)
        raise KeyError(os.environ["RANK"])

    with pytest.raises(KeyError) as caught:
        run(fail, np=1, output_dir=str(tmp_path / "logs"), report=tmp_path / "report.html")
    assert "in fail" in str(caught.value.__cause__)
    said = capfd.readouterr().err
    assert said.startswith("[0] before\n")
    assert "Traceback" not in said
    logged = (tmp_path / "logs" / "rank.0" / "stderr").read_text()
    assert logged.startswith("before\nTraceback")
    assert logged.count("KeyError: '0'") == 1
    assert "in fail" in (tmp_path / "report.html").read_text()


@pytest.mark.full
def test_the_traceback_of_a_rank_that_is_replaced_is_shown(capfd, tmp_path):
    def fail_once(mark):
        if not os.path.exists(mark):
            os.mkdir(mark)
            raise KeyError("only once")
        return 7

    assert run(fail_once, (tmp_path / "failed",), np=1, max_restarts=1) == [7]
    assert capfd.readouterr().err.count("KeyError: 'only once'") == 1


@pytest.mark.full
def test_an_exception_that_cannot_be_unpickled_is_told_as_text():
    class OddError(Exception):
        """Cannot be made from its arguments. A class of this function, so that it travels by value."""

        def __init__(self, one, two):
            super().__init__("odd")

    def fail():
        raise OddError(1, 2)

    with pytest.raises(LaunchError, match=r"(?s)rank 0 raised.*OddError: odd"):
        run(fail, np=1)


@pytest.mark.parametrize(
    ("die", "complaint"),
    one_in_gate(
        pytest.param(lambda: os.kill(os.getpid(), signal.SIGKILL), "rank 0 on localhost .* was killed by SIGKILL"),
        pytest.param(lambda: sys.exit(42), "exited with code 42"),
        pytest.param(lambda: sys.exit(0), "exited with code 0 before the function returned"),
    ),
    ids=["killed", "failed", "ended too early"],
)
def test_a_rank_that_dies_without_an_exception_is_a_launch_error(die, complaint):
    with pytest.raises(LaunchError, match=complaint):
        run(die, np=1)


def test_a_result_that_cannot_be_pickled_is_the_ranks_exception():
    with pytest.raises(TypeError, match="pickle"):
        run(threading.Lock, np=1)


def test_a_function_that_cannot_be_pickled_starts_nothing():
    lock = threading.Lock()
    with pytest.raises(LaunchError, match="cannot be pickled"):
        run(lambda: lock, np=1)


def test_what_ranks_print_appears_on_our_streams(capsys):
    run(lambda: print("hello from", os.environ["RANK"]), np=2)
    assert sorted(capsys.readouterr().out.splitlines()) == ["[0] hello from 0", "[1] hello from 1"]


def test_without_np_all_slots_have_a_rank():
    assert run(os.getenv, ("WORLD_SIZE",), hosts="localhost:2") == ["2", "2"]


def test_a_job_is_observed_as_by_the_options_of_the_command_line(capsys, tmp_path):
    def train():
        import distrun

        distrun.init()
        return distrun.allreduce(distrun.rank() + 1.0, op=distrun.Sum)

    page, events = tmp_path / "report.html", tmp_path / "timeline.json"
    assert run(train, np=2, live=True, report=page, timeline=events) == [3.0, 3.0]
    assert "<html" in page.read_text()
    assert len({each["pid"] for each in json.loads(events.read_text())["traceEvents"]}) == 2
    assert f"distrun: the report is in {page}" in capsys.readouterr().err


@pytest.mark.full
def test_a_function_may_have_parameter_servers(capsys):
    assert run(os.getenv, ("RANK",), np=2, servers=1) == ["0", "1"]


def test_a_job_ends_after_its_timeout():
    with pytest.raises(LaunchError, match=r"timeout"):
        run(lambda: signal.pause(), np=1, timeout=0.5)


def test_variables_and_modules_of_the_caller_are_there(tmp_path, monkeypatch):
    (tmp_path / "helper_of_the_caller.py").write_text("def answer(): return 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    import helper_of_the_caller

    assert run(helper_of_the_caller.answer, np=1) == [42]
    assert run(os.getenv, ("A",), np=1, env={"A": "b"}) == ["b"]


def test_other_children_of_the_caller_live_on(assert_no_children, tmp_path):
    fifo = tmp_path / "both"
    os.mkfifo(fifo)

    def end_the_agent():
        rank = int(os.environ["RANK"])
        with open(fifo, "rw"[rank]):  # waits for the other one: both have been started
            if rank == 0:
                os.kill(os.getppid(), signal.SIGKILL)
            signal.pause()

    with subprocess.Popen(["sleep", "1000"]) as other:
        try:
            with pytest.raises(LaunchError, match=r"agent on localhost .* was killed by SIGKILL"):
                run(end_the_agent, np=2)
            assert other.poll() is None
            assert_no_children(psutil.Process(other.pid))
        finally:
            other.kill()


def test_ctrl_c_ends_the_ranks_and_is_raised(assert_no_children):
    def interrupt(caller):
        os.kill(caller, signal.SIGINT)
        signal.pause()

    with pytest.raises(KeyboardInterrupt):
        run(interrupt, (os.getpid(),), np=2)
    assert_no_children()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_works_outside_the_main_thread():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run, os.getpid).result(60) != [os.getpid()]
