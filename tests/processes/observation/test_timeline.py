"""Timelines of real ranks: under our launcher, under mpirun, and where a script asks for one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from histories.chrome_trace import FIRST_PROCESS, load, query
from histories.trace_processor import TraceProcessor
from session.tiers import one_in_gate
from shell import wait_until

PAGE = Path(__file__).parents[3] / "docs" / "timeline.md"

STRAGGLER = """
import os, sys, time
import distrun, distrun.data
import numpy as np

distrun.init()
gradient = np.ones(100_000, np.float32)
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
{starts}distrun.start_timeline({file!r})
for step in range(50):
    if distrun.rank() == 1:
        time.sleep(0.02)
    distrun.allreduce(np.ones(1000), name="gradient")
{stops}distrun.stop_timeline()
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


FAULTS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
SLICES = """
select process.name as process, thread.name as row, slice.name as name, slice.dur as dur from slice
join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
order by slice.ts
"""
NESTED = """
select distinct inner_.name as name from slice as inner_ join slice as outer_ on inner_.parent_id = outer_.id
where outer_.name = 'forward'
"""
COUNTERS = """
select process.name as process, max(counter.value) as most from counter
join process_counter_track as track on counter.track_id = track.id join process using (upid)
where track.name = '% waiting for other ranks' group by 1 order by 1
"""
OPERATIONS = """
select extract_arg(arg_set_id, 'args.operation') as operation, max(extract_arg(arg_set_id, 'args.number')) as number
from slice where name = 'moving' group by 1
"""


def test_perfetto_finds_a_straggler_of_20_ms_with_sql(distrun, python, tmp_path):
    """A reader of the format in Python alone had not noticed that Perfetto names a counter twice."""
    file = tmp_path / "t.json.gz"
    options = ("--timeline", str(file), "--timeline-operations", "--timeline-mark-cycles")
    distrun("-np", "3", *options, *python(STRAGGLER)).ended(0)
    (from_docs,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with TraceProcessor(file) as perfetto:
        assert perfetto.query(FAULTS) == []
        top, *others = perfetto.query(from_docs)
        slices = perfetto.query(SLICES)
        nested = {name for (name,) in perfetto.query(NESTED)}
        counters = perfetto.query(COUNTERS)
        operations = perfetto.query(OPERATIONS)
    names = [f"rank {rank} on localhost" for rank in range(3)]
    rows = ("training", "communication", "allreduce 'gradient'")
    assert {(process, row) for process, row, *_ in slices} == {(rank, row) for rank in names for row in rows}
    assert operations == [("allreduce 'gradient'", 60)]
    for rank in names:
        shown = [name for process, row, name, _ in slices if (process, row) == (rank, "training")]
        steps = [int(name.split()[1]) for name in shown if name.startswith("step ")]
        assert steps == list(range(1, 60))  # that the last one is over nothing has told
    assert {"waiting for rank 1", "moving"} <= nested
    assert top[0] == "waiting for rank 1"
    assert all(ms < top[2] / 2 for _, _, ms in others)
    for rank in (names[0], names[2]):
        waits = [dur for process, row, *rest, dur in slices if [process, row, *rest] == [rank, "training", top[0]]]
        assert sum(dur >= 10e6 for dur in waits) >= 30
    most = dict(counters)
    assert list(most) == names
    assert most[names[0]] > most[names[1]]


@pytest.mark.gate
def test_a_straggler_is_named_and_steps_operations_and_marks_are_chosen(distrun, python, tmp_path):
    file = tmp_path / "t.json"
    chosen = ("--timeline-steps", "10:12", "--timeline-operations", "--timeline-mark-cycles")
    distrun("-np", "2", "--timeline", str(file), *chosen, *python(STRAGGLER)).ended(0)
    tables = query(file)
    names = tables.execute("select distinct name from slice where name like 'step%' order by 1").fetchall()
    assert names == [("step 10",), ("step 11",), ("step 12",)]
    assert straggler(tables)[0] == "waiting for rank 1"
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
    distrun("-np", "2", "--timeline", str(file), *python(code)).ended(9)
    tables = query(file)
    assert ranks(tables) == [0, 1]
    last = "select name, dur > 500000 from slice where rank = ? and row = 'training' and {} order by ts desc limit 1"
    waits = tables.execute(last.format("name like 'waiting for allreduce%'"), (0,)).fetchone()
    assert waits == ("waiting for allreduce 'gradient'", 1)
    assert tables.execute(last.format("name = 'forward'"), (1,)).fetchone() == ("forward", 1)


def test_a_launcher_that_is_killed_leaves_a_file_that_can_be_read(distrun, python, tmp_path):
    file = tmp_path / "t.json.gz"
    job = distrun("-np", "2", "--timeline", str(file), *python(STRAGGLER.replace("[0] * 60", "range(100000)")))
    wait_until(lambda: events_in(file) > 200)
    job.process.kill()
    job.wait()
    assert len(load(file)["traceEvents"]) > 200
    with TraceProcessor(file) as perfetto:
        assert perfetto.query(FAULTS) == []


def events_in(file):
    """Return the number of events in a file that is being written. 0: its end is just missing."""
    try:
        return len(load(file)["traceEvents"])
    except (OSError, EOFError, ValueError, AssertionError):
        return 0


@pytest.mark.gate
@pytest.mark.parametrize("launcher", one_in_gate((), ("--launcher", "mpirun")))
def test_scripts_record_a_timeline_themselves(distrun, python, tmp_path, launcher):
    file = tmp_path / "t.json.gz"
    distrun("-np", "3", *launcher, *python(CALLS.format(file=str(file), starts="", stops=""))).ended(0)
    tables = query(file)
    assert ranks(tables) == [0, 1, 2]
    assert straggler(tables, 2)[0] == "waiting for rank 1"
    assert files(tmp_path) == ["t.json.gz"]


@pytest.mark.parametrize(
    ("starts", "stops", "recorded"),
    [("if distrun.rank() == 0: ", "if distrun.rank() == 0: ", [0]), ("", "if distrun.rank() == 0: ", [0, 1])],
    ids=["only the rank that asks is in it", "a first rank that stops has the others stop"],
)
def test_ranks_need_not_call_alike(distrun, python, tmp_path, starts, stops, recorded):
    file = tmp_path / "t.json"
    distrun("-np", "2", *python(CALLS.format(file=str(file), starts=starts, stops=stops))).ended(0)
    assert ranks(query(file)) == recorded
    assert files(tmp_path) == ["t.json"]


@pytest.mark.gate
@pytest.mark.parametrize("dead", one_in_gate(0, 1))
def test_what_a_killed_rank_recorded_is_in_the_timeline(distrun, python, tmp_path, dead):
    file = tmp_path / "t.json"
    code = CALLS.format(file=str(file), starts="", stops="").replace(
        "    distrun.allreduce",
        f"    if step == 40 and distrun.rank() == {dead}: __import__('os').kill(__import__('os').getpid(), 9)\n"
        "    distrun.allreduce",
    )
    distrun("-np", "3", *python(code)).ended(137)
    if not file.exists():  # the others were ended before they could put their parts together
        subprocess.run([sys.executable, "-m", "distrun.tracing.parts", str(file)], check=True)
    assert ranks(query(file)) == [0, 1, 2]
    assert set(files(tmp_path)) <= {"t.json", ".t.json.parts"}


@pytest.mark.gate
@pytest.mark.parametrize("options", one_in_gate(("--horovod",), ("--launcher", "mpirun"), chosen=1))
def test_a_variable_asks_for_it_too(distrun, python, tmp_path, options):
    distrun("-np", "2", *options, *python(STRAGGLER), DISTRUN_TIMELINE=str(tmp_path / "t.json")).ended(0)
    tables = query(tmp_path / "t.json")
    assert ranks(tables) == [0, 1]
    assert straggler(tables)[0] == "waiting for rank 1"
    assert files(tmp_path) == ["t.json"]


@pytest.mark.gate
def test_calls_that_make_no_sense_are_refused(output, python, tmp_path):
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
    printed = output("-np", "1", "--no-tag-output", "--wdir", str(tmp_path), *python(textwrap.dedent(code)))
    first, second, third = printed.decode().splitlines()
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
    distrun("-np", "2", "--timeline", str(ours), sys.executable, str(program), str(theirs)).ended(0, 120)
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
