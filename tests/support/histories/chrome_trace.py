"""A strict reader of Chrome's trace event format, with SQL over the events."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import Any

FIRST_PROCESS = 5_000_000
_ALLOWED = {
    "X": {"ph", "pid", "tid", "ts", "dur", "name", "args"},
    "i": {"ph", "pid", "tid", "ts", "s", "name", "args"},
    "C": {"ph", "pid", "ts", "name", "args"},
    "M": {"ph", "pid", "tid", "name", "args"},
}


def load(path: Path) -> dict[str, Any]:
    """Return the object that the file is; refuses what the format does not have, and slices that do not nest."""
    raw = path.read_bytes()
    trace = json.loads(gzip.decompress(raw) if path.name.endswith(".gz") else raw)
    rows = defaultdict(list)
    for event in trace["traceEvents"]:
        assert set(event) - {"args"} == _ALLOWED[event["ph"]] - {"args"}, event
        assert all(isinstance(event[key], int) for key in ("pid", "tid", "ts", "dur") if key in event), event
        if event["ph"] == "X":
            assert event["dur"] > 0
            rows[event["pid"], event["tid"]].append((event["ts"], -event["dur"], event["name"]))
    for slices in rows.values():
        _check_nesting(sorted(slices))
    return trace


def _check_nesting(slices: list[tuple[int, int, str]]) -> None:
    around: list[tuple[int, str]] = []
    for begin, minus_length, name in slices:
        end = begin - minus_length
        while around and around[-1][0] <= begin:
            around.pop()
        assert not around or end <= around[-1][0], (name, begin, end, around[-1])
        around.append((end, name))


def query(path: Path) -> sqlite3.Connection:
    """Return a database with the tables `slice` (rank, row, ts, dur, name, operation, bytes), `counter` (rank,
    ts, name, value) and `rank` (rank, name), named after those of Perfetto's trace processor."""
    trace = load(path)
    tables = sqlite3.connect(":memory:")
    tables.execute("create table slice (rank, row, ts, dur, name, operation, bytes)")
    tables.execute("create table counter (rank, ts, name, value)")
    tables.execute("create table rank (rank, name)")
    titles = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    }
    for event in trace["traceEvents"]:
        rank, args = event["pid"] - FIRST_PROCESS, event.get("args", {})
        if event["ph"] in "Xi":
            row = titles[event["pid"], event["tid"]]
            values = (rank, row, event["ts"], event.get("dur", 0), event["name"])
            tables.execute(
                "insert into slice values (?, ?, ?, ?, ?, ?, ?)", (*values, args.get("operation"), args.get("bytes"))
            )
        elif event["ph"] == "C":
            for key, value in args.items():
                row = rank, event["ts"], f"{event['name']} {key}", value
                tables.execute("insert into counter values (?, ?, ?, ?)", row)
        elif event["name"] == "process_name":
            tables.execute("insert into rank values (?, ?)", (rank, args["name"]))
    return tables
