"""Timelines of Horovod's mode: rank 0 writes while the job runs."""

from __future__ import annotations

import json
import signal

import pytest
from histories.trace_processor import TraceProcessor

BEGINNING = """
import os, signal, time
import distrun
import numpy as np

def await_text(file, text):
    deadline = time.monotonic() + 60
    while not os.path.exists(file) or text not in open(file).read():
        assert time.monotonic() < deadline, open(file).read()
        time.sleep(0.05)

"""
BY_SCRIPT = """
os.environ["HOROVOD_TIMELINE"] = {file!r}
os.environ["HOROVOD_TIMELINE_MARK_CYCLES"] = "1"
distrun.init()
distrun.allreduce(np.ones(3), name="first")
if distrun.rank() == 0:
    await_text({file!r}, '"ALLREDUCE"')
    assert open({file!r}).read().endswith("}},\\n")
distrun.barrier()
distrun.shutdown()
"""
KILLED = """
distrun.init()
for step in range(100):
    distrun.allreduce(np.ones(3), name="loss")
if distrun.rank() == 0:
    await_text({file!r}, '"ALLREDUCE"')
    os.kill(os.getpid(), signal.SIGKILL)
distrun.barrier()
"""
CALLS = """
distrun.init()
distrun.stop_timeline()
for file in {files!r}:
    distrun.barrier()
    distrun.start_timeline(file, mark_cycles=file.endswith("1"))
    distrun.barrier()
    distrun.allreduce(np.ones(3), name=os.path.basename(file))
    if not file.endswith("1"):
        distrun.stop_timeline()
        distrun.stop_timeline()
try:
    distrun.start_timeline("/none/t.json")
except distrun.UsageError as error:
    print("refused:", error)
"""


def named(trace):
    """Return the names of events, and of tensors."""
    tensors = {event["args"]["name"] for event in trace if event.get("name") == "process_name"}
    return {event["name"] for event in trace if event["ph"] in ("B", "i")}, tensors


@pytest.mark.gate
def test_the_file_is_there_while_the_job_runs_and_complete_at_its_end(distrun, python, tmp_path):
    file = tmp_path / "t.json"
    distrun("-np", "2", "--horovod", *python(BEGINNING + BY_SCRIPT.format(file=str(file)))).ended(0)
    events, tensors = named(json.loads(file.read_text()))
    assert {"NEGOTIATE_ALLREDUCE", "ALLREDUCE", "GLOO_ALLREDUCE", "BARRIER", "CYCLE_START"} <= events
    assert tensors == {"allreduce.first", "barrier.noname.2"}


def test_perfetto_opens_the_file_of_a_rank_that_was_killed(distrun, python, tmp_path):
    file = tmp_path / "t.json"
    code = BEGINNING + KILLED.format(file=str(file))
    job = distrun("-np", "2", "--horovod", *python(code), HOROVOD_TIMELINE=str(file))
    assert job.wait() == 128 + signal.SIGKILL
    text = file.read_text()
    assert text.endswith("},\n")
    assert named(json.loads(text[: -len(",\n")] + "]"))[1] == {"allreduce.loss"}
    with TraceProcessor(file) as perfetto:
        assert perfetto.query("select name from stats where severity in ('error', 'data_loss') and value > 0") == []
        depths = perfetto.query("select distinct name, depth from slice order by 1")
    assert depths == [("ALLREDUCE", 0), ("GLOO_ALLREDUCE", 1), ("NEGOTIATE_ALLREDUCE", 0)]


def test_a_script_starts_and_stops_it(output, python, tmp_path):
    files = [str(tmp_path / name) for name in "012"]
    code = BEGINNING + CALLS.format(files=files)
    printed = output("-np", "2", "--horovod", "--no-tag-output", *python(code), HOROVOD_TIMELINE="DYNAMIC")
    assert printed.decode().splitlines() == [
        "refused: '/none/t.json': there is no folder '/none': make it, or give a file in one that exists"
    ]
    found = [named(json.loads((tmp_path / name).read_text())) for name in "012"]
    assert ["CYCLE_START" in events for events, _ in found] == [False, True, False]
    for name, (_, tensors) in zip("012", found, strict=True):
        assert f"allreduce.{name}" in tensors
        assert not tensors & {f"allreduce.{other}" for other in {*"012"} - {name}}


def test_a_file_that_cannot_be_written_is_told_and_the_job_goes_on(distrun, python):
    code = "import distrun; distrun.init(); distrun.barrier()"
    said = distrun("-np", "2", "--horovod", *python(code), HOROVOD_TIMELINE="/none/t.json").ended(0)
    sentence = "no timeline is written for HOROVOD_TIMELINE: '/none/t.json': there is no folder '/none': make it"
    assert said.decode().count(sentence) == 1
