"""`distrun.spark.run` on a real Spark with two executors: results, failures, what is left, Spark Connect."""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

import distrun.spark
from distrun.errors import LaunchError, NotOfferedError, UsageError
from distrun.runner.job.calls import RemoteTraceback


def steps(end=None, told=None):
    """Return a function that reduces for ever; rank 1 meets its `end` after ten steps, and tells that it steps."""

    def train():
        import numpy as np
        import psutil

        import distrun

        distrun.init()
        for step in range(10**9):
            distrun.allreduce(np.ones(3))
            if step != 10 or distrun.rank() != 1:
                continue
            if told:
                Path(told).write_text("stepping")
            if end == "error":
                raise KeyError("no such sample", 7)
            if end == "kill":
                print("these are my last words", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            parents = psutil.Process().parents()
            executor = [process.name() for process in parents].index("java")
            if end in ("agent", "worker", "executor"):
                parents[{"agent": 0, "worker": executor - 2, "executor": executor}[end]].kill()

    return train


@pytest.fixture
def nothing_left(spark):
    """Looks afterwards that no process of a rank or an agent is left."""
    yield
    assert psutil.wait_procs([each for each in psutil.process_iter() if _is_ours(each)], timeout=60)[1] == []


@pytest.fixture
def told(tmp_path):
    """A pipe in which `steps` says that a rank steps."""
    os.mkfifo(tmp_path / "told")
    return tmp_path / "told"


def _is_ours(process):
    marks = ("distrun.spark.agent", "function_worker.py", "distrun.runner.agent")
    try:
        is_of_a_job = any(mark in " ".join(process.cmdline()) for mark in marks)
        return is_of_a_job and process.environ().get("TEST_SESSION") == os.environ["TEST_SESSION"]
    except psutil.Error:
        return False


@pytest.mark.gate
def test_results_come_back_in_rank_order_and_output_to_the_driver(spark, nothing_left, monkeypatch, capfd):
    def place(greeting, *, mark):
        import numpy as np

        import distrun

        distrun.init()
        print("hello from", distrun.rank())
        total = float(distrun.allreduce(np.array([1.0 + distrun.rank()]), op=distrun.Sum)[0])
        settings = os.environ["EXTRA"], os.environ["DISTRUN_STALL_WARNING"]
        return greeting, mark, distrun.rank(), distrun.size(), distrun.local_rank(), total, settings

    monkeypatch.setenv("DISTRUN_STALL_WARNING", "55")
    results = distrun.spark.run(place, ("hi",), {"mark": "!"}, num_proc=2, env={"EXTRA": "1"})
    assert results == [("hi", "!", rank, 2, rank, 3.0, ("1", "55")) for rank in range(2)]
    said = capfd.readouterr().out
    assert "[0] hello from 0\n" in said
    assert "[1] hello from 1\n" in said
    assert distrun.spark.run(lambda: os.environ["RANK"], verbose=0) == ["0", "1"]  # Spark's own number of tasks


def test_output_reaches_the_driver_while_ranks_run(spark, nothing_left, tmp_path):
    heard = tmp_path / "heard"
    os.mkfifo(heard)

    class Driver(io.StringIO):
        def write(self, text):
            if "[1] hear me" in text:
                heard.write_text("yes")
            return super().write(text)

    def speak(heard):
        import distrun

        distrun.init()
        if distrun.rank() == 1:
            answer = os.open(heard, os.O_RDWR)
            print("hear me", flush=True)
            assert select.select([answer], [], [], 60)[0], "nobody has heard"
        print("x" * 3_000_000)

    stdout = Driver()
    distrun.spark.run(speak, (str(heard),), num_proc=2, stdout=stdout)
    assert stdout.getvalue().count("x") == 6_000_000  # more than a report would bring


@pytest.mark.gate
def test_the_exception_of_a_rank_is_raised_as_the_object_it_was(spark, nothing_left):
    with pytest.raises(KeyError) as caught:
        distrun.spark.run(steps("error"), num_proc=2, verbose=0)
    assert caught.value.args == ("no such sample", 7)
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "in train" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("end", "report"),
    [
        ("kill", r"^rank 1 on \S+.*was killed by SIGKILL\n.*last lines on stderr:\n    these are my last words"),
        pytest.param("agent", r"^the agent on \S+ .*(was killed by SIGKILL|is out of reach)"),
        pytest.param("worker", "^the Python worker of a task was killed or crashed, and its"),
        ("executor", r"^executor \d+.* was lost while the job ran, and its ranks with it: .*137"),
    ],
)
def test_whatever_is_killed_is_one_failure_report_and_leaves_nothing(spark, nothing_left, end, report):
    with pytest.raises(LaunchError, match=report):
        distrun.spark.run(steps(end), num_proc=2, verbose=0)
    assert distrun.spark.run(lambda: 1, num_proc=2) == [1, 1]  # a lost executor is waited for


def test_a_job_that_spark_cancels_ends_all_ranks(spark, nothing_left, told):
    def cancel():
        told.read_text()  # until a rank steps
        spark.sparkContext.cancelAllJobs()

    canceller = threading.Thread(target=cancel, daemon=True)
    canceller.start()
    with pytest.raises(LaunchError, match="Spark has cancelled the job: its ranks were ended"):
        distrun.spark.run(steps(told=str(told)), num_proc=2, verbose=0)
    canceller.join()


def test_ctrl_c_in_the_driver_ends_all_ranks_and_frees_the_executors(spark, nothing_left, told):
    def interrupt():
        told.read_text()  # until a rank steps
        os.kill(os.getpid(), signal.SIGINT)  # which pyspark handles

    interrupter = threading.Thread(target=interrupt, daemon=True)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        distrun.spark.run(steps(told=str(told)), num_proc=2, verbose=0)
    interrupter.join()
    assert distrun.spark.run(lambda: 1, num_proc=2, start_timeout=60) == [1, 1]


def test_tasks_that_find_no_room_beside_other_jobs_are_given_up_in_time(spark, nothing_left, told):
    ended = []

    def occupy():
        with pytest.raises(LaunchError, match="cancelled") as caught:
            distrun.spark.run(steps(told=str(told)), num_proc=2, verbose=0)
        ended.append(caught)

    occupant = threading.Thread(target=occupy)
    occupant.start()
    told.read_text()  # until a rank steps
    # Spark may note the second job only when that time is over.
    with pytest.raises(LaunchError, match=r"^2 tasks could not start in 0.1 s \(start_timeout\), since other jobs"):
        distrun.spark.run(print, num_proc=2, verbose=0, start_timeout=0.1)
    spark.sparkContext.cancelAllJobs()  # the other one was left alone
    occupant.join()
    assert ended


def test_what_cannot_be_is_refused_with_a_sentence(spark, monkeypatch):
    for arguments, sentence in (
        ({"use_mpi": True}, "use_mpi=True: ranks on Spark are connected without MPI"),
        ({"executable": "/opt/python"}, "ranks run in the Python of their executors"),
    ):
        with pytest.raises(NotOfferedError, match=sentence):
            distrun.spark.run(print, **arguments)
    with pytest.raises(UsageError, match="num_proc=0 is not a number of ranks"):
        distrun.spark.run(print, num_proc=0)
    with pytest.raises(LaunchError, match=r"room for \d tasks at once, and num_proc=9 needs as many"):
        distrun.spark.run(print, num_proc=9, start_timeout=0.3)
    with pytest.raises(UsageError, match=r"^nics 'eth77' allows no interface of host \S+: give one of "):
        distrun.spark.run(print, num_proc=2, nics=["eth77"])
    monkeypatch.setenv("HOROVOD_SPARK_START_TIMEOUT", "0.2")
    with pytest.raises(LaunchError, match="num_proc=9 needs as many"):
        distrun.spark.run(print, num_proc=9)
    monkeypatch.setenv("HOROVOD_SPARK_START_TIMEOUT", "soon")
    with pytest.raises(UsageError, match="HOROVOD_SPARK_START_TIMEOUT='soon' is not a number of seconds > 0"):
        distrun.spark.run(print, num_proc=2)
    monkeypatch.delenv("HOROVOD_SPARK_START_TIMEOUT")
    with pytest.raises(LaunchError, match="cannot be pickled"):
        distrun.spark.run(print, (threading.Lock(),), num_proc=2)


def lines_of(program, folder, *arguments):
    """Run a program in a process of its own; return its two lines of results and errors."""
    environ = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_WORKER_DIR": str(folder / "work")}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("[(", "KeyError", "refused"))]
    assert len(lines) == 2, done.stdout + done.stderr
    return lines


CONNECT = """
import distrun
distrun.install_as_horovod()
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
import horovod.spark

def train(fail):
    import distrun
    import horovod
    import numpy as np
    distrun.init()
    if fail and distrun.rank() == 1:
        raise KeyError("no such sample")
    return float(distrun.allreduce(np.ones(1), op=distrun.Sum)[0]), distrun.rank()

print(horovod.spark.run(train, (False,), num_proc=2, verbose=0))
try:
    horovod.spark.run(train, (True,), num_proc=2, verbose=0)
except KeyError as error:
    print(repr(error), type(error.__cause__).__name__)
spark.stop()
"""


def test_spark_connect_and_horovods_names(java, tmp_path):
    """The server of Spark Connect is a process on this machine; a classic session cannot be in the same process."""
    assert lines_of(CONNECT, tmp_path) == ["[(2.0, 0), (2.0, 1)]", "KeyError('no such sample') RemoteTraceback"]


GPUS = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false")
for kind in ("worker", "executor"):
    builder = builder.config(f"spark.{kind}.resource.gpu.amount", "2")
    builder = builder.config(f"spark.{kind}.resource.gpu.discoveryScript", sys.argv[1])
spark = builder.config("spark.task.resource.gpu.amount", "1").getOrCreate()
import distrun.spark

def visible():
    import os
    return os.environ["CUDA_VISIBLE_DEVICES"], os.environ["DISTRUN_SHARE_GPUS"]

try:
    distrun.spark.run(visible, num_proc=2, verbose=0)
except distrun.UsageError as error:
    print(f"refused: {error}")
print(distrun.spark.run(visible, num_proc=2, verbose=0, env={"DISTRUN_SHARE_GPUS": "1"}))
spark.stop()
"""


def test_gpus_that_spark_gives_to_several_tasks_are_shared_only_if_that_is_asked_for(java, tmp_path):
    script = tmp_path / "gpus"
    script.write_text("""#!/bin/sh\necho '{"name": "gpu", "addresses": ["0", "1"]}'\n""")
    script.chmod(0o755)
    refused, shared = lines_of(GPUS, tmp_path, str(script))
    assert "are more than its 1 GPU 0: have executors of one host list different ones" in refused
    assert shared == "[('0', '1'), ('0', '1')]"
