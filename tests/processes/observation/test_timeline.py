"""Timelines of real ranks: under our launcher, under mpirun, and where a script asks for one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time

import pytest
from histories.chrome_trace import FIRST_PROCESS, load, query
from histories.trace_processor import TraceProcessor
from session.tiers import one_in_gate

STRAGGLER = """
import os, sys, time
import distrun, distrun.data
import numpy as np

distrun.init()
gradient = np.ones(1000, np.float32)
for batch in distrun.data.watch([0] * 60):
    if distrun.rank() == 1:
        time.sleep(0.02)
    distrun.allreduce_(gradient, name="gradient")
"""
CALLS = """
import sys, time
import distrun
import numpy as np

distrun.init()
{condition}distrun.start_timeline({file!r})
for step in range(50):
    if distrun.rank() == 1:
        time.sleep(0.02)
    distrun.allreduce(np.ones(1000), name="gradient")
{condition}distrun.stop_timeline()
distrun.barrier()
print("done")
"""


def straggler(tables, waiting=0):
    """Return for whom a rank has waited most, and for how many ms of each wait."""
    return tables.execute(
        "select name, count(*), sum(dur) / 1e3 / count(*) as ms from slice where rank = ? and row = 'training' "
        "and name like 'waiting for rank%' group by 1 order by sum(dur) desc limit 1",
        (waiting,),
    ).fetchone()


def files(folder):
    """Return what is left in a folder, but for the temporary folder of the job itself."""
    return sorted(set(os.listdir(folder)) - {"tmp"})


def ranks(tables):
    return [rank for (rank,) in tables.execute("select distinct rank from slice order by 1")]


@pytest.mark.gate
def test_a_straggler_of_20_ms_is_named(distrun, python, tmp_path):
    file = tmp_path / "t.json.gz"
    job = distrun("-np", "3", "--timeline", str(file), *python(STRAGGLER))
    assert job.wait() == 0, job.stderr.data
    tables = query(file)
    assert ranks(tables) == [0, 1, 2]
    for rank in (0, 2):
        name, count, ms = straggler(tables, rank)
        assert name == "waiting for rank 1"
        assert count >= 30
        assert ms > 5
    steps = tables.execute("select count(*) from slice where name like 'step%' group by rank").fetchall()
    assert all(count >= 57 for (count,) in steps)
    assert tables.execute("select count(*) from counter where name = 'steps per second' and value > 5").fetchone()[0]
    job.assert_gone()


@pytest.mark.gate
def test_steps_operations_and_marks_are_chosen(distrun, python, tmp_path):
    file = tmp_path / "t.json"
    chosen = ("--timeline-steps", "10:12", "--timeline-operations", "--timeline-mark-cycles")
    job = distrun("-np", "2", "--timeline", str(file), *chosen, *python(STRAGGLER))
    assert job.wait() == 0, job.stderr.data
    tables = query(file)
    names = tables.execute("select distinct name from slice where name like 'step%' order by 1").fetchall()
    assert names == [("step 10",), ("step 11",), ("step 12",)]
    of_operation = tables.execute("select count(*) from slice where row like 'allreduce%' and name = 'moving'")
    assert of_operation.fetchone()[0] == 6
    assert tables.execute("select count(*) from slice where name = 'cycle'").fetchone()[0] >= 3


@pytest.mark.gate
def test_the_file_of_a_job_that_fails_tells_what_every_rank_was_doing(distrun, python, tmp_path):
    file = tmp_path / "t.json.gz"
    code = STRAGGLER.replace("[0] * 60", "range(30)").replace(
        "    if distrun.rank() == 1:\n",
        "    if distrun.rank() == 1 and batch == 25:\n        time.sleep(1)\n        os._exit(9)\n"
        "    if distrun.rank() == 1:\n",
    )
    job = distrun("-np", "2", "--timeline", str(file), *python(code))
    assert job.wait() == 9
    tables = query(file)
    assert ranks(tables) == [0, 1]
    last = "select name, dur > 500000 from slice where rank = ? and row = 'training' and {} order by ts desc limit 1"
    waits = tables.execute(last.format("name like 'waiting for allreduce%'"), (0,)).fetchone()
    assert waits == ("waiting for allreduce 'gradient'", 1)
    assert tables.execute(last.format("name = 'forward'"), (1,)).fetchone() == ("forward", 1)
    job.assert_gone()


def test_a_launcher_that_is_killed_leaves_a_file_that_can_be_read(distrun, python, tmp_path):
    file = tmp_path / "t.json.gz"
    job = distrun("-np", "2", "--timeline", str(file), *python(STRAGGLER.replace("[0] * 60", "range(100000)")))
    deadline_loop(lambda: len(load(file)["traceEvents"]) > 200)
    job.process.kill()
    job.wait()
    assert len(load(file)["traceEvents"]) > 200
    with TraceProcessor(file) as perfetto:
        assert perfetto.query("select name from stats where severity in ('error', 'data_loss') and value > 0") == []
    job.assert_gone()


def deadline_loop(is_so):
    """Wait until something is so, which is looked at again and again."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if is_so():
                return
        except (OSError, EOFError, ValueError, AssertionError):
            pass  # it is just being written
        time.sleep(0.1)
    raise AssertionError("it did not come to be")


@pytest.mark.gate
@pytest.mark.parametrize("launcher", one_in_gate((), ("--launcher", "mpirun")))
def test_scripts_record_a_timeline_themselves(distrun, python, tmp_path, launcher):
    file = tmp_path / "t.json.gz"
    job = distrun("-np", "3", *launcher, *python(CALLS.format(file=str(file), condition="")))
    assert job.wait() == 0, job.stderr.data
    tables = query(file)
    assert ranks(tables) == [0, 1, 2]
    assert straggler(tables, 2)[0] == "waiting for rank 1"
    assert files(tmp_path) == ["t.json.gz"]


def test_the_rank_that_asks_is_the_only_one_in_it(distrun, python, tmp_path):
    file = tmp_path / "t.json"
    job = distrun("-np", "2", *python(CALLS.format(file=str(file), condition="if distrun.rank() == 0: ")))
    assert job.wait() == 0, job.stderr.data
    assert ranks(query(file)) == [0]
    assert files(tmp_path) == ["t.json"]


def test_a_first_rank_that_stops_has_the_others_stop(distrun, python, tmp_path):
    file = tmp_path / "t.json"
    code = CALLS.format(file=str(file), condition="").replace("distrun.stop_", "if not distrun.rank(): distrun.stop_")
    job = distrun("-np", "2", *python(code))
    assert job.wait() == 0, job.stderr.data
    assert ranks(query(file)) == [0, 1]
    assert files(tmp_path) == ["t.json"]


@pytest.mark.gate
@pytest.mark.parametrize("dead", one_in_gate(0, 1))
def test_what_a_killed_rank_recorded_is_in_the_timeline(distrun, python, tmp_path, dead):
    file = tmp_path / "t.json"
    code = CALLS.format(file=str(file), condition="").replace(
        "    distrun.allreduce",
        f"    if step == 40 and distrun.rank() == {dead}: __import__('os').kill(__import__('os').getpid(), 9)\n"
        "    distrun.allreduce",
    )
    job = distrun("-np", "3", *python(code))
    assert job.wait() == 137
    if not file.exists():  # the others were ended before they could put their parts together
        subprocess.run([sys.executable, "-m", "distrun.tracing.parts", str(file)], check=True)
    assert ranks(query(file)) == [0, 1, 2]
    assert set(files(tmp_path)) <= {"t.json", ".t.json.parts"}


@pytest.mark.gate
@pytest.mark.parametrize("options", one_in_gate(("--horovod",), ("--launcher", "mpirun"), chosen=1))
def test_a_variable_asks_for_it_too(distrun, python, tmp_path, options):
    job = distrun("-np", "2", *options, *python(STRAGGLER), DISTRUN_TIMELINE=str(tmp_path / "t.json"))
    assert job.wait() == 0, job.stderr.data
    tables = query(tmp_path / "t.json")
    assert ranks(tables) == [0, 1]
    assert straggler(tables)[0] == "waiting for rank 1"
    assert files(tmp_path) == ["t.json"]


@pytest.mark.gate
def test_calls_that_make_no_sense_are_refused(distrun, python, tmp_path):
    code = """
    import distrun
    distrun.init()
    for call in (lambda: distrun.stop_timeline(), lambda: distrun.start_timeline("/none/t.json"),
                 lambda: [distrun.start_timeline("t.json"), distrun.start_timeline("u.json")]):
        try:
            call()
        except distrun.UsageError as error:
            print(error)
    """
    job = distrun("-np", "1", "--no-tag-output", "--wdir", str(tmp_path), *python(textwrap.dedent(code)))
    assert job.wait() == 0, job.stderr.data
    first, second, third = job.stdout.data.decode().splitlines()
    assert first == "stop_timeline(): no timeline is being recorded: start_timeline(file) begins one"
    assert second == "'/none/t.json': there is no folder '/none': make it, or give a file in one that exists"
    assert third == "start_timeline('u.json'): a timeline is being recorded already: stop_timeline() ends it"
    assert files(tmp_path) == ["t.json"]


PROFILED = """
import sys, time
import torch
import distrun.torch as hvd
from torch.profiler import ProfilerActivity, profile, record_function

hvd.init()
model = torch.nn.Linear(8, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    for step in range(1, 31):
        with record_function(f"my step {step}"):
            optimizer.zero_grad()
            time.sleep(0.01)
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
if not hvd.rank():
    profiler.export_chrome_trace(sys.argv[1])
"""


def test_steps_lie_where_those_of_torchs_profiler_lie(distrun, tmp_path):
    pytest.importorskip("torch")
    program, theirs, ours = tmp_path / "train.py", tmp_path / "torch.json", tmp_path / "ours.json"
    program.write_text(PROFILED)
    job = distrun("-np", "2", "--timeline", str(ours), sys.executable, str(program), str(theirs))
    assert job.wait(120) == 0, job.stderr.data
    trace, other = load(ours), json.loads(theirs.read_text())
    assert trace["baseTimeNanoseconds"] == other["baseTimeNanoseconds"]
    ends = {
        int(event["name"].split()[-1]): event["ts"] + event["dur"]
        for event in other["traceEvents"]
        if event["name"].startswith("my step ") and event["ph"] == "X"
    }
    found = {
        int(event["name"].split()[-1]): event["ts"] + event["dur"]
        for event in trace["traceEvents"]
        if event["name"].startswith("step ") and event["pid"] == FIRST_PROCESS and event["ph"] == "X"
    }
    # Both end with the optimizer's step. The profiler measures the difference of its clocks itself.
    late = sorted(abs(ends[step] - found[step]) for step in range(5, 31))
    assert late[len(late) // 2] < 5_000
