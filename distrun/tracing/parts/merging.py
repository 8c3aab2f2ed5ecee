"""Making one timeline from parts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from distrun.tracing import layout
from distrun.tracing.parts.part import Part, inode, parts_in
from distrun.tracing.reader import Event, shifted
from distrun.tracing.timeline.clock_bounds import ClockBounds
from distrun.tracing.timeline.options import TimelineOptions
from distrun.tracing.timeline.timeline import Timeline, recorded
from distrun.tracing.timeline.travel import Key


class _Stream:
    """A part that is being read."""

    def __init__(self, part: Part, offset: int) -> None:
        self.part = part
        self.offset = offset
        self.until = 0
        """The time that it has been read up to."""
        self._frames: Iterator[tuple[list[Event], list[str]]] | None = part.frames()

    @property
    def is_over(self) -> bool:
        """Whether the part has been read to its end."""
        return self._frames is None

    def next(self) -> tuple[list[Event], list[str]]:
        """Return the next events, in times of the common clock."""
        assert self._frames is not None
        found = next(self._frames, None)
        if found is None:
            self._frames = None
            return [], [""]
        moved = list(shifted(found[0], self.offset))
        self.until = max([self.until, *map(recorded, moved)])
        return moved, found[1]


def merge(folder: Path, options: TimelineOptions, but: frozenset[int] = frozenset()) -> list[int]:
    """Write the timeline of all parts in a folder, and remove the folder.

    Args:
        folder: the folder.
        options: the timeline.
        but: the inodes of parts to leave out, which are an earlier job's.

    Returns:
        The ranks in the timeline.

    Raises:
        OSError: the timeline cannot be written.
    """
    parts = []
    for path in parts_in(folder):
        if inode(path) in but:
            continue
        try:
            parts.append(Part(path))
        except (json.JSONDecodeError, TypeError):
            pass  # its rank was killed before it had written anything
    if parts:
        whole = folder / Path(options.file).name
        _write(parts, replace(options, file=str(whole)))
        whole.replace(options.file)  # only now: if this process is killed before, the parts are as they were
    shutil.rmtree(folder, ignore_errors=True)
    return sorted(part.header.rank for part in parts)


def _write(parts: Sequence[Part], options: TimelineOptions) -> None:
    offsets = _offsets(parts)
    streams = [_Stream(part, offsets[part.header.clock]) for part in parts]
    first = [(stream, *stream.next()) for stream in streams]
    begin = min((event.begin for _, events, _ in first for event in events), default=0)
    timeline = Timeline(options, parts[0].header.epoch, begin)
    for stream, events, names in first:
        header = stream.part.header
        # The part begins in the middle of the ring's history, so the timeline first gets the state at that time.
        joined = Event(begin, 0, 0, 0, layout.GENERATION, 0, header.generation, 0, 0)
        state = Event(begin, 0, 0, 0, header.state, 0, 0, 0, 0)
        timeline.add(header.rank, header.rank, header.host, [joined, state, *events], names)
    while left := [stream for stream in streams if not stream.is_over]:
        stream = min(left, key=lambda stream: stream.until)
        events, names = stream.next()
        timeline.add(stream.part.header.rank, stream.part.header.rank, stream.part.header.host, events, names)
        timeline.advance(min(stream.until for stream in left))
    timeline.close(max(stream.until for stream in streams))


def _offsets(parts: Sequence[Part]) -> dict[str, int]:
    """Return by how many nanoseconds each clock is ahead of the clock of the first part."""
    reference = parts[0].header
    offsets = {part.header.clock: reference.epoch - part.header.epoch for part in parts}
    if len(offsets) > 1:
        bounds = ClockBounds(reference.clock)
        for part in parts:
            generation = part.header.generation
            for events, names in part.frames():
                for event in events:
                    if event.kind == layout.GENERATION:
                        generation = event.number
                    elif event.kind == layout.DONE and event.submitted:
                        key = Key(generation, event.process_set, names[event.name], event.number)
                        bounds.note(part.header.clock, key, event.submitted, event.end)
        offsets = {clock: bounds.offset(clock, offset) for clock, offset in offsets.items()}
    return {**offsets, reference.clock: 0}
