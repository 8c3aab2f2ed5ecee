"""A timeline shows what ranks do, for which rank they wait, and nothing that is not asked for."""

import gzip
import random
import zlib

import pytest
from histories.chrome_trace import load, query

from distrun.errors import UsageError
from distrun.tracing import layout
from distrun.tracing.reader import Event
from distrun.tracing.timeline.options import TimelineOptions, check_file, parse_limit, parse_steps
from distrun.tracing.timeline.timeline import Timeline

MS = 1_000_000
EPOCH = 1_795_473_431_143_976_422
NAMES = ["", "allreduce 'a'", "allreduce 'b'"]


def event(kind, begin, end=0, submitted=0, value=0, name=0, number=0, process_set=0, fused=1):
    return Event(begin, end, submitted, value, kind, name, number, process_set, fused)


def step(number, begin, late=0):
    """A step of 10 ms and `late`, with one operation that is submitted `late` after the others."""
    at = begin + late
    return [
        event(layout.INPUT, begin),
        event(layout.FORWARD, begin + 1 * MS),
        event(layout.BACKWARD, at + 4 * MS),
        event(layout.WAITING, at + 6 * MS, name=1),
        *operation(number, at + 6 * MS, begin + 26 * MS),
        event(layout.OPTIMIZER, begin + 29 * MS),
        event(layout.STEP, begin + 30 * MS, number=number, value=8),
        event(layout.OTHER, begin + 30 * MS + 2000),
    ]


def operation(number, submitted, begin):
    """Everybody submits it; it begins at the same time everywhere."""
    return [
        event(layout.DONE, begin, begin + 2 * MS, submitted, 4096, name=1, number=number),
        event(layout.WAITED, submitted, begin + 2 * MS + 1000),
    ]


@pytest.fixture(params=["t.json", "t.json.gz"])
def file(request, tmp_path):
    return tmp_path / request.param


def write(file, late=20 * MS, **options):
    """Return the tables of a timeline of two ranks in 40 steps."""
    timeline = Timeline(TimelineOptions(str(file), **options), EPOCH, 0)
    for number in range(1, 41):
        begin = number * 31 * MS
        timeline.add(0, 0, "a", step(number, begin), NAMES)
        timeline.add(1, 1, "b", step(number, begin, late), NAMES)
        timeline.advance(begin - 100 * MS)
    timeline.close(2000 * MS)
    return query(file)


def written(file, *told, end):
    """Return the tables of a timeline of some events, each with its rank."""
    timeline = Timeline(TimelineOptions(str(file)), EPOCH, 0)
    for rank, *events in told:
        timeline.add(rank, rank, "a", events, NAMES)
    timeline.close(end * MS)
    return query(file)


def test_who_is_waited_for_is_named(file):
    tables = write(file)
    waits = tables.execute(
        "select rank, name, count(*), min(dur), max(dur) from slice "
        "where row = 'training' and name like 'waiting for r%' group by 1, 2"
    ).fetchall()
    assert waits == [(0, "waiting for rank 1", 40, 20000, 20000)]
    assert tables.execute("select * from rank order by 1").fetchall() == [(0, "rank 0 on a"), (1, "rank 1 on b")]


def test_every_part_of_a_step_is_on_the_row_of_its_rank(file):
    tables = write(file)
    parts = dict(
        tables.execute(
            "select name, sum(dur) / 40 from slice where rank = 1 and row = 'training' and dur > 10 group by 1"
        )
    )
    names = ["waiting for input", "forward", "backward", "optimizer", "moving"]
    assert [parts[name] for name in names] == [1000, 23000, 5000, 1000, 2000]
    assert {parts[f"step {number}"] for number in range(2, 41)} == {31000 // 40}
    (rate,) = tables.execute("select max(value) from counter where name = 'steps per second'").fetchone()
    assert rate == pytest.approx(1000 / 31, rel=0.1)


def test_communication_has_a_row_of_its_own(file):
    tables = write(file)
    rows = tables.execute(
        "select name, sum(dur) / 40, max(bytes), min(operation) from slice where rank = 0 and row = 'communication' "
        "group by 1"
    ).fetchall()
    assert rows == [("moving", 2000, 4096, "allreduce 'a'"), ("waiting for rank 1", 20000, None, "allreduce 'a'")]


def test_operations_have_rows_where_they_are_asked_for(file):
    select = "select count(*) from slice where row = ?"
    assert write(file).execute(select, (NAMES[1],)).fetchone() == (0,)
    assert write(file, operations=True).execute(select, (NAMES[1],)).fetchone() == (40 * 3,)


def test_only_the_steps_that_are_asked_for_are_shown(file):
    select = "select count(*) from slice where name in ('forward', 'moving')"
    (whole,) = write(file, late=0).execute(select).fetchone()
    tables = write(file, late=0, steps=range(10, 13))
    steps = tables.execute("select name from slice where name like 'step%' and rank = 1 order by ts").fetchall()
    assert steps == [("step 10",), ("step 11",), ("step 12",)]
    assert tables.execute(select).fetchone() == (whole * 3 // 40,)


def test_what_a_rank_was_doing_at_the_end_is_shown(file):
    waiting = [event(layout.BACKWARD, MS), event(layout.WAITING, 2 * MS, name=2)]
    tables = written(file, (0, event(layout.INPUT, MS)), (1, *waiting), end=900)
    shown = tables.execute("select rank, name, dur from slice order by rank, dur").fetchall()
    assert shown == [
        (0, "waiting for input", 899_000),
        (1, "waiting for allreduce 'b'", 898_000),
        (1, "backward", 899_000),
    ]


def test_a_step_counted_while_its_operation_is_waited_for_ends_when_the_rank_is_awake(file):
    events = [event(layout.OTHER, MS)]
    for number in range(1, 5):
        begin = number * 10 * MS
        events += [
            event(layout.WAITING, begin, name=1),
            event(layout.STEP, begin + 2 * MS, number=number),
            event(layout.DONE, begin + MS, begin + 2 * MS, begin, 8, name=1, number=number),
            event(layout.WAITED, begin, begin + 3 * MS),
        ]
    tables = written(file, (0, *events), end=60)
    steps = tables.execute("select name, dur from slice where name like 'step%' order by 1").fetchall()
    assert steps == [("step 2", 10_000), ("step 3", 10_000), ("step 4", 10_000)]


def test_an_operation_that_never_slept_is_no_wait_of_the_main_thread(file):
    another_thread = [event(layout.WAITING, MS), event(layout.FORWARD, 5 * MS), *operation(1, MS, 6 * MS)]
    tables = written(file, (0, event(layout.INPUT, 2 * MS), *another_thread, event(layout.OTHER, 20 * MS)), end=30)
    names = tables.execute("select name from slice where row = 'training' order by ts").fetchall()
    assert names == [("waiting for input",), ("forward",), ("own code",)]


def test_worlds_of_an_elastic_job_are_told_apart(file):
    told = []
    for world in (1, 2):
        at = world * 100 * MS
        for process, late in ((0, 0), (1, 5 * MS)) if world == 1 else ((0, 7 * MS), (1, 0)):
            events = [event(layout.GENERATION, at, number=world), event(layout.OTHER, at)]
            begun = [event(layout.WAITING, at + late, name=1), *operation(1, at + late, at + 10 * MS)]
            told.append((process, *events, *begun))
    tables = written(file, *told, end=300)
    waits = tables.execute("select rank, name from slice where row = 'training' and name like 'waiting for r%'")
    assert sorted(waits.fetchall()) == [(0, "waiting for rank 1"), (1, "waiting for rank 0")]


def test_times_are_those_of_torchs_profiler(tmp_path):
    file = tmp_path / "t.json"
    write(file)
    trace = load(file)
    assert trace["baseTimeNanoseconds"] == 1790857026000000000  # as torch 2.13 has written at that time
    first = min(entry["ts"] for entry in trace["traceEvents"] if entry["ph"] == "X")
    assert trace["baseTimeNanoseconds"] // 1000 + first == (EPOCH + 31 * MS) // 1000


def test_the_file_is_complete_whenever_its_writer_is_killed(file):
    timeline = Timeline(TimelineOptions(str(file)), EPOCH, 0)
    assert load(file)["traceEvents"] == []
    sizes = []
    for number in range(1, 100):
        timeline.add(0, 0, "a", step(number, number * 31 * MS), NAMES)
        timeline.advance(number * 31 * MS - 1)
        sizes.append(len(load(file)["traceEvents"]))
    assert sizes == sorted(sizes)
    assert sizes[-1] > 500


def test_an_hour_stays_below_its_limit(tmp_path):
    """With a limit, and as many events, as a two-hundredth of eight ranks would have: the test is to be short."""
    limit, rng = 250_000, random.Random(1)
    file = tmp_path / "t.json.gz"
    timeline = Timeline(TimelineOptions(str(file), limit=limit, operations=True), EPOCH, 0)
    slow = set(range(250, 2000, 250))
    begin, largest = 0, 0
    for number in range(1, 2000):
        begin += (4800 if number in slow else 1800) * MS
        for rank in range(2):
            jitter = rng.randrange(5 * MS)
            timeline.add(rank, rank, "a", step(number, begin + jitter, rng.randrange(10 * MS)), NAMES)
        timeline.advance(begin - 100 * MS)
        largest = max(largest, file.stat().st_size)
    timeline.close(begin + 50 * MS)
    assert max(largest, file.stat().st_size) <= limit
    tables = query(file)
    long = tables.execute("select count(distinct name) from slice where name like 'step%' and dur > 2000000").fetchone()
    assert long == (len(slow),)
    # Something is left for the end: seconds in full, in the last ten minutes.
    late = "ts > (select max(ts) - 600 * 1000000 from counter)"
    assert tables.execute(f"select count(*) from slice where name = 'forward' and {late}").fetchone()[0] > 5
    # And not everything is shown.
    assert tables.execute("select count(*) from slice where name = 'forward'").fetchone()[0] < 2000


@pytest.mark.parametrize(
    ("text", "steps"), [("100:120", range(100, 121)), ("7", range(7, 8)), (":3", range(1, 4)), ("5:", 5)]
)
def test_steps_are_parsed(text, steps):
    parsed = parse_steps("--timeline-steps ", text)
    assert (parsed if isinstance(steps, range) else parsed.start) == steps


@pytest.mark.parametrize("text", ["", "0", "1.5", "-3", "x", ":", "0:3", "5:4", "a:b", "1-2", "1:2:3", "-1:2"])
def test_what_is_no_range_of_steps_and_no_limit_is_refused(text):
    with pytest.raises(UsageError, match=f"^--option '{text}' is no range of steps: give the first and the last"):
        parse_steps("--option ", text)
    with pytest.raises(UsageError, match=f"^--option '{text}' is no number of megabytes: give 1 or more$"):
        parse_limit("--option ", text)


def test_a_file_that_cannot_be_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"there is no folder '.*/none': make it, or give a file in one that exists"):
        check_file("--timeline ", str(tmp_path / "none" / "t.json"))
    with pytest.raises(UsageError, match="is a folder: give the name of a file"):
        check_file("--timeline ", str(tmp_path))
    check_file("--timeline ", str(tmp_path / "t.json"))


def test_a_compressed_file_is_one_stream(tmp_path):
    file = tmp_path / "t.json.gz"
    write(file)
    stream = zlib.decompressobj(31)
    assert stream.decompress(file.read_bytes()) == gzip.decompress(file.read_bytes())
    assert stream.eof
    assert not stream.unused_data
