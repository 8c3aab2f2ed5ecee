"""The events of a ring under the names of Horovod's timeline, one JSON object each.

Each tensor is a process of the trace, with nested pairs of B and E:

    {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "allreduce.loss"}}
    {"name": "process_sort_index", "ph": "M", "pid": 1, "args": {"sort_index": 1}}
    {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 120, "pid": 1}
    {"ph": "E", "ts": 480, "pid": 1}
    {"ph": "B", "name": "ALLREDUCE", "ts": 480, "pid": 1, "args": {"bytes": 4}}
    {"ph": "B", "name": "GLOO_ALLREDUCE", "ts": 480, "pid": 1}
    {"ph": "E", "ts": 520, "pid": 1}
    {"ph": "E", "ts": 520, "pid": 1}
"""

from __future__ import annotations

import ast
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from distrun.tracing import layout
from distrun.tracing.reader import Event

_ACTIVITIES = {
    "allreduce": "ALLREDUCE",
    "allgather": "ALLGATHER",
    "broadcast": "BCAST",
    "alltoall": "ALLTOALL",
    "reducescatter": "REDUCESCATTER",
    "barrier": "",
}
"""For each kind of operation that Horovod's timeline shows, its activity without the name of the library."""


@dataclass
class _Tensor:
    """A tensor, which is a process of the trace."""

    kind: str
    number: int
    ended: int = 0
    """When its last operation ended."""


class HorovodEntries:
    """Makes the entries of one rank's timeline, from its events in order."""

    def __init__(self, begin: int, library: str, mark_cycles: bool) -> None:
        """
        Args:
            begin: the time that the trace counts from. Nothing that began before is shown.
            library: the first part of the activities' names, "GLOO" or "MPI". Empty: when they end is not known.
            mark_cycles: whether to mark when decisions of the coordinator arrive.
        """
        self._begin = begin
        self._library = library
        self._mark_cycles = mark_cycles
        self._tensors: dict[tuple[int, int], _Tensor | None] = {}  # by process set and the name's number
        self._numbers = itertools.count(1)

    def of(self, recorded: Iterable[Event], names: Sequence[str]) -> Iterator[str]:
        """Yield the entries of events. `names` are from the same ring."""
        for event in recorded:
            if event.kind == layout.CYCLE and self._mark_cycles and event.begin >= self._begin:
                yield f'{{"ph": "i", "name": "CYCLE_START", "ts": {self._at(event.begin)}, "s": "g"}}'
            elif event.kind == layout.DONE and event.begin >= self._begin and event.name < len(names):
                yield from self._operation(event, names[event.name])

    def _operation(self, event: Event, label: str) -> Iterator[str]:
        key = event.process_set, event.name
        if key not in self._tensors:
            kind, name = _kind_and_name(label)
            if kind not in _ACTIVITIES:
                self._tensors[key] = None
                return
            tensor = _Tensor(kind, next(self._numbers))
            if name is None:  # several may be under way at once, so each is a process of the trace, as in Horovod
                name = f"noname.{tensor.number}"
            else:
                self._tensors[key] = tensor
            head = {"name": "process_name", "ph": "M", "pid": tensor.number, "args": {"name": f"{kind}.{name}"}}
            yield json.dumps(head)
            yield json.dumps(head | {"name": "process_sort_index", "args": {"sort_index": tensor.number}})
        elif (known := self._tensors[key]) is not None:
            tensor = known
        else:
            return
        yield from self._phases(event, tensor)

    def _phases(self, event: Event, tensor: _Tensor) -> Iterator[str]:
        kind = tensor.kind.upper()
        end = f'"pid": {tensor.number}}}'
        began, ended = self._at(event.begin), self._at(event.end)
        # The rank may have submitted the operation again before the end of the last one was recorded.
        submitted = max(event.submitted, tensor.ended)
        tensor.ended = event.end
        if event.submitted and self._begin <= submitted <= event.begin:
            yield f'{{"ph": "B", "name": "NEGOTIATE_{kind}", "ts": {self._at(submitted)}, {end}'
            yield f'{{"ph": "E", "ts": {began}, {end}'
        tensors = f', "tensors": {event.fused}' if event.fused > 1 else ""
        args = f'"args": {{"bytes": {event.value}{tensors}}}'
        yield f'{{"ph": "B", "name": "{kind}", "ts": {began}, {end[:-1]}, {args}}}'
        activity = _ACTIVITIES[tensor.kind]
        if activity and self._library:
            yield f'{{"ph": "B", "name": "{self._library}_{activity}", "ts": {began}, {end}'
            yield f'{{"ph": "E", "ts": {ended}, {end}'
        yield f'{{"ph": "E", "ts": {ended}, {end}'

    def _at(self, time: int) -> int:
        """Return a time in microseconds of the trace."""
        return (time - self._begin) // 1000


def _kind_and_name(label: str) -> tuple[str, str | None]:
    """Return the kind and the name in a label such as `allreduce 'loss'`. The name of `unnamed allreduce` is None."""
    kind, _, name = label.partition(" ")
    if kind == "unnamed":
        return name, None
    try:
        return kind, str(ast.literal_eval(name))
    except (SyntaxError, ValueError):  # a long label is cut off
        return kind, name[1:]
