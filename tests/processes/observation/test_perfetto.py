"""Perfetto itself opens the timeline of a real job, and finds in it who was late.

A reader of the format in Python alone had not noticed that Perfetto names a counter twice.
"""

from __future__ import annotations

import re
from pathlib import Path

from histories.trace_processor import TraceProcessor

PAGE = Path(__file__).parents[3] / "docs" / "timeline.md"
STEPS, LATE = 60, 0.02
STRAGGLER = f"""
import time
import distrun, distrun.data
import numpy as np

distrun.init()
gradient = np.ones(100_000, np.float32)
for batch in distrun.data.watch([0] * {STEPS}):
    if distrun.rank() == 1:
        time.sleep({LATE})
    distrun.allreduce_(gradient, name="gradient")
"""
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


def test_a_straggler_of_20_ms_is_found_with_sql(distrun, python, tmp_path):
    file = tmp_path / "t.json.gz"
    options = ("--timeline", str(file), "--timeline-operations", "--timeline-mark-cycles")
    job = distrun("-np", "3", *options, *python(STRAGGLER))
    assert job.wait() == 0, job.stderr.data
    (from_docs,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with TraceProcessor(file) as perfetto:
        faults = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
        assert perfetto.query(faults) == []
        top, *others = perfetto.query(from_docs)
        slices = perfetto.query(SLICES)
        nested = {name for (name,) in perfetto.query(NESTED)}
        counters = perfetto.query(COUNTERS)
        operations = perfetto.query(OPERATIONS)
    ranks = [f"rank {rank} on localhost" for rank in range(3)]
    rows = ("training", "communication", "allreduce 'gradient'")
    assert {(process, row) for process, row, *_ in slices} == {(rank, row) for rank in ranks for row in rows}
    assert operations == [("allreduce 'gradient'", STEPS)]
    for rank in ranks:
        names = [name for process, row, name, _ in slices if (process, row) == (rank, "training")]
        steps = [int(name.split()[1]) for name in names if name.startswith("step ")]
        assert steps == list(range(1, STEPS))  # that the last one is over nothing has told
    assert {"waiting for rank 1", "moving"} <= nested
    assert top[0] == "waiting for rank 1"
    assert all(ms < top[2] / 2 for _, _, ms in others)
    for rank in (ranks[0], ranks[2]):
        waits = [dur for process, row, *rest, dur in slices if [process, row, *rest] == [rank, "training", top[0]]]
        assert sum(dur >= LATE / 2 * 1e9 for dur in waits) >= STEPS // 2
    most = dict(counters)
    assert list(most) == ranks
    assert most[ranks[0]] > most[ranks[1]]
