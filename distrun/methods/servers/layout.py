"""The layout of the parameters on the servers: pure functions, with the same result on all workers and servers.

The dense parameters form one flat vector, group by group. Each server has a contiguous part of it, of equal size. Of a
sparse parameter, a table, server i of S has the rows i, i + S, i + 2 S and so on: the rows that are used most are
usually the first ones, so this spreads them over all servers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from distrun.methods.servers.rules import Rule, slots_of


@dataclass(frozen=True)
class Parameter:
    """One parameter of the model."""

    name: str
    shape: tuple[int, ...]
    group: int
    """The index of its group, and of the group's rule."""
    is_sparse: bool = False
    """Whether workers push and pull only some of its rows."""

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The facts that all workers and servers must agree on."""

    parameters: tuple[Parameter, ...]
    rules: tuple[Rule, ...]
    """The rule of each group of parameters."""
    workers: int
    is_synchronous: bool = False
    """Whether the gradients of all workers are averaged. Otherwise each is applied on arrival."""

    def to_json(self) -> bytes:
        """Return the layout as JSON, for `from_json`."""
        return json.dumps(asdict(self), sort_keys=True).encode("ascii")

    @classmethod
    def from_json(cls, text: bytes) -> Layout:
        """Return the layout that `to_json` encoded."""
        values = json.loads(text)
        parameters = tuple(Parameter(**{**item, "shape": tuple(item["shape"])}) for item in values.pop("parameters"))
        return cls(parameters, tuple(Rule(**item) for item in values.pop("rules")), **values)

    @property
    def slots(self) -> int:
        """The number of arrays, as large as the parameters, in the state of the optimizer."""
        return max((len(slots_of(rule)) for rule in self.rules), default=0)

    def flat_order(self) -> list[int]:
        """Return the indices of the dense parameters in the order of the flat vector."""
        dense = [index for index, parameter in enumerate(self.parameters) if not parameter.is_sparse]
        return sorted(dense, key=lambda index: self.parameters[index].group)  # stable

    def tables(self) -> list[int]:
        """Return the indices of the sparse parameters."""
        return [index for index, parameter in enumerate(self.parameters) if parameter.is_sparse]


@dataclass(frozen=True)
class Segment:
    """The part of a dense parameter that one server holds."""

    parameter: int
    group: int
    place: int
    """The index of its first element in the share."""
    size: int
    offset: int
    """The index of its first element in the parameter."""


@dataclass(frozen=True)
class Table:
    """The rows of a sparse parameter that one server holds."""

    parameter: int
    group: int
    place: int
    """The index of its first element in the share. The rows are contiguous."""
    rows: int
    width: int


@dataclass(frozen=True)
class ServerShard:
    """The share of one server: its part of the flat vector, followed by its tables."""

    start: int
    """The index in the flat vector where its part begins."""
    segments: tuple[Segment, ...]
    tables: tuple[Table, ...]

    @property
    def dense_size(self) -> int:
        """The number of elements of its part of the flat vector."""
        return sum(segment.size for segment in self.segments)

    @property
    def size(self) -> int:
        """The number of all elements."""
        return self.dense_size + sum(table.rows * table.width for table in self.tables)

    @property
    def parts(self) -> tuple[Segment | Table, ...]:
        """The segments and then the tables."""
        return (*self.segments, *self.tables)


def shares(layout: Layout, servers: int) -> list[ServerShard]:
    """Return the share of each of `servers` servers."""
    order = layout.flat_order()
    total = sum(layout.parameters[index].size for index in order)
    bounds = [server * total // servers for server in range(servers + 1)]
    return [_share(layout, order, bounds[server], bounds[server + 1], server, servers) for server in range(servers)]


def _share(layout: Layout, order: Sequence[int], start: int, stop: int, server: int, servers: int) -> ServerShard:
    segments = []
    begin = 0
    for index in order:
        parameter = layout.parameters[index]
        first, last = max(start, begin), min(stop, begin + parameter.size)
        if first < last:
            segments.append(Segment(index, parameter.group, first - start, last - first, first - begin))
        begin += parameter.size
    place = stop - start
    tables = []
    for index in layout.tables():
        parameter = layout.parameters[index]
        rows = len(range(server, parameter.shape[0], servers))
        tables.append(Table(index, parameter.group, place, rows, width := parameter.size // max(1, parameter.shape[0])))
        place += rows * width
    return ServerShard(start, tuple(segments), tuple(tables))
