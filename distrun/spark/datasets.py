"""A DataFrame as Parquet files that the ranks share, divided among them by row groups.

Spark writes and pyarrow reads: a rank opens only the files with its row groups, and holds one row group at a time. Row
groups are divided as `distrun.data.shard` divides samples, again in each epoch if they are shuffled. The rows of a rank
are then cut into batches, the same number on every rank.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.data.plan import Division, Plan
from distrun.errors import UsageError

Batch = dict[str, NDArray[Any]]

_LEAST_GROUPS = 8  # row groups per rank in the files, so that they can be divided evenly


def dataset(df: Any, path: str, *, num_proc: int | None = None, columns: Sequence[str] | None = None) -> Dataset:
    """Write a DataFrame as Parquet files, and return the `Dataset` by which ranks read them.

    Args:
        df: the DataFrame, of a classic session or of Spark Connect.
        path: a folder on storage that the executors and the ranks share. Existing files are replaced.
        num_proc: the number of ranks that will read it: there will be enough row groups for them.
        columns: the columns to keep. None: all.

    Returns:
        The dataset, which can be passed to the ranks as an argument of `run`.

    Raises:
        UsageError: a column does not exist.
    """
    chosen = list(columns or df.columns)
    missing = sorted(set(chosen) - set(df.columns))
    if missing:
        raise UsageError(f"columns={missing} are not in the DataFrame, which has {', '.join(df.columns)}")
    table = df.select(*chosen)
    if num_proc is not None:
        table = table.repartition(num_proc * _LEAST_GROUPS)
    table.write.mode("overwrite").parquet(path)
    return Dataset(path, tuple(chosen))


@dataclass(frozen=True)
class Piece:
    """A row group of a file, or a part of one."""

    file: str
    group: int
    rows: int
    start: int = 0


@dataclass(frozen=True)
class Dataset:
    """Parquet files in a folder, written by `dataset` or by any other program."""

    path: str
    """The folder."""
    columns: tuple[str, ...] | None = None
    """The columns to read. None: all."""

    def row_groups(self) -> list[Piece]:
        """Return all row groups that have rows, in an order that is the same on all ranks.

        Raises:
            UsageError: the files have no rows.
        """
        import pyarrow.parquet

        found = []
        for file in sorted(Path(_local(self.path)).rglob("*.parquet")):
            metadata = pyarrow.parquet.read_metadata(file)
            numbers = range(metadata.num_row_groups)
            found += [Piece(str(file), number, metadata.row_group(number).num_rows) for number in numbers]
        groups = [group for group in found if group.rows]
        if not groups:
            raise UsageError(f"{self.path!r} has no Parquet file with rows on this host: give a folder that all share")
        return groups

    def shard(
        self, batch_size: int, *, shuffle: bool = False, seed: int = 0, rank: int | None = None, size: int | None = None
    ) -> Batches:
        """Return this rank's batches.

        Args:
            batch_size: the number of rows of a batch.
            shuffle: whether to shuffle the row groups, and the rows within each, by the seed and the epoch.
            seed: the seed of the order, the same on all ranks.
            rank, size: the part to return, and the number of parts. None: by this rank and the size of the world.

        Raises:
            UsageError: there are fewer rows than ranks, or an argument is impossible.
            NotInitializedError: `rank` and `size` are not given, and `distrun.init()` was not called.
        """
        from distrun.runtime.world import world

        division = Division(
            world.rank() if rank is None else rank,
            world.size() if size is None else size,
            batch_size,
            shuffle,
            seed,
            pad=False,
        )
        return Batches(self, self.row_groups(), division)


class Batches:
    """A rank's batches: dictionaries of numpy arrays by column, the same number on every rank in every epoch.

    Every row is used at least once in an epoch. If the rows cannot be divided evenly, ranks with fewer rows repeat some
    of their own.
    """

    def __init__(self, dataset: Dataset, pieces: Sequence[Piece], division: Division) -> None:
        self._dataset = dataset
        self._pieces = split(pieces, division.ranks)
        self._division = division
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch. Without this, each iteration counts as the next epoch."""
        self._epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches of the next epoch, the same on all ranks."""
        return self._steps(self._epoch)

    def __iter__(self) -> Iterator[Batch]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        batches = self._cut(self._columns_for_ever(epoch))
        return itertools.islice(batches, self._steps(epoch))

    def _own(self, epoch: int, rank: int) -> list[Piece]:
        """Return the pieces of a rank in an epoch."""
        plan = Plan(replace(self._division, rank=rank, batch_size=None), len(self._pieces))
        return [self._pieces[index] for index in plan.indices(epoch)]

    def _steps(self, epoch: int) -> int:
        ranks = range(self._division.ranks)
        most = max(sum(piece.rows for piece in self._own(epoch, rank)) for rank in ranks)
        return -(-most // self._size)

    @property
    def _size(self) -> int:
        return self._division.batch_size or 1

    def _columns_for_ever(self, epoch: int) -> Iterator[Batch]:
        """Yield the columns of this rank's pieces, and start over after the last."""
        order = np.random.default_rng((self._division.seed, epoch, self._division.rank))
        for piece in itertools.cycle(self._own(epoch, self._division.rank)):
            columns = self._read(piece)
            if self._division.shuffle:
                mixed = order.permutation(piece.rows)
                columns = {name: values[mixed] for name, values in columns.items()}
            yield columns

    def _read(self, piece: Piece) -> Batch:
        import pyarrow.parquet

        with pyarrow.parquet.ParquetFile(piece.file) as file:
            names = list(self._dataset.columns) if self._dataset.columns else None
            table = file.read_row_group(piece.group, columns=names).slice(piece.start, piece.rows)
        return {name: _array(table.column(name)) for name in table.column_names}

    def _cut(self, pieces: Iterator[Batch]) -> Iterator[Batch]:
        """Yield batches of one size from columns of any length."""
        left: Batch = {}
        for columns in pieces:
            joined = {name: np.concatenate([left[name], columns[name]]) if left else columns[name] for name in columns}
            count = len(next(iter(joined.values())))
            whole = count - count % self._size
            for start in range(0, whole, self._size):
                yield {name: values[start : start + self._size] for name, values in joined.items()}
            left = {name: values[whole:] for name, values in joined.items()} if whole < count else {}


def split(pieces: Sequence[Piece], ranks: int) -> list[Piece]:
    """Return row groups, cut into smaller pieces if there are fewer than ranks; refuse fewer rows than ranks."""
    found = list(pieces)
    while len(found) < ranks:
        longest = max(found, key=lambda piece: piece.rows)
        if longest.rows < 2:
            raise UsageError(f"{len(found)} rows cannot be divided among {ranks} ranks: start fewer ranks")
        place, half = found.index(longest), longest.rows // 2
        found[place : place + 1] = [
            replace(longest, rows=half),
            replace(longest, start=longest.start + half, rows=longest.rows - half),
        ]
    return found


def _array(column: Any) -> NDArray[Any]:
    """Return a column as an array. A column of lists of equal lengths, or of Spark's dense vectors, becomes a
    matrix."""
    import pyarrow

    kind = column.type
    if pyarrow.types.is_struct(kind) and "values" in [kind.field(number).name for number in range(kind.num_fields)]:
        column = pyarrow.compute.struct_field(column.combine_chunks(), "values")  # a pyspark.ml.linalg.DenseVector
        kind = column.type
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        return np.stack(column.to_numpy(zero_copy_only=False)) if len(column) else np.empty((0, 0))
    return np.asarray(column.to_numpy())


def _local(path: str) -> str:
    """Return a path, which must be on a mounted file system, without a leading `file:`."""
    kind, colon, rest = path.partition(":")
    if colon and kind == "file":
        return "/" + rest.lstrip("/")
    if colon and "/" not in kind:
        raise UsageError(f"{path!r} is on no mounted file system: give a folder that executors and ranks can open")
    return path
