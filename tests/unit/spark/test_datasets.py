"""Row groups of Parquet files, dealt out to ranks and cut into batches."""

import numpy as np
import pytest

from distrun.errors import UsageError

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

from distrun.spark.datasets import Dataset, Piece, split  # noqa: E402


def written(folder, sizes, group=7):
    """Return a dataset of files with these numbers of rows, numbered through."""
    start = 0
    for number, size in enumerate(sizes):
        table = pyarrow.table({"id": np.arange(start, start + size), "text": [str(i) for i in range(size)]})
        parquet.write_table(table, folder / f"part-{number}.parquet", row_group_size=group)
        start += size
    return Dataset(str(folder))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("sizes", "ranks"), [([20], 2), ([5, 40, 1], 3), ([100, 3], 4), ([3], 3), ([10], 1)])
def test_every_row_is_taken_and_all_ranks_have_as_many_batches(tmp_path, sizes, ranks, shuffle):
    data = written(tmp_path, sizes)
    shards = [data.shard(4, shuffle=shuffle, seed=1, rank=rank, size=ranks) for rank in range(ranks)]
    for _ in range(2):
        lengths = {len(shard) for shard in shards}
        taken = [list(shard) for shard in shards]
        assert {len(batches) for batches in taken} == lengths
        assert {len(batch["id"]) for batches in taken for batch in batches} == {4}
        assert {int(i) for batches in taken for batch in batches for i in batch["id"]} == set(range(sum(sizes)))


def test_an_epoch_can_be_had_again_and_epochs_differ_if_rows_are_shuffled(tmp_path):
    shard = written(tmp_path, [64]).shard(8, shuffle=True, rank=0, size=2)
    first, second = ([batch["id"].tolist() for batch in shard] for _ in range(2))
    assert first != second
    shard.set_epoch(0)
    assert [batch["id"].tolist() for batch in shard] == first


def test_columns_are_chosen_and_lists_become_matrices(tmp_path):
    parquet.write_table(pyarrow.table({"x": [[1.0, 2.0], [3.0, 4.0]], "y": [0, 1]}), tmp_path / "part.parquet")
    (batch,) = Dataset(str(tmp_path), ("x",)).shard(2, rank=0, size=1)
    assert {name: values.tolist() for name, values in batch.items()} == {"x": [[1.0, 2.0], [3.0, 4.0]]}


def test_fewer_row_groups_than_ranks_are_cut_and_fewer_rows_are_refused():
    pieces = split([Piece("a", 0, 5), Piece("b", 0, 2)], 4)
    assert sorted((piece.file, piece.start, piece.rows) for piece in pieces) == [
        ("a", 0, 2),
        ("a", 2, 1),
        ("a", 3, 2),
        ("b", 0, 2),
    ]
    with pytest.raises(UsageError, match="2 rows cannot be divided among 3 ranks"):
        split([Piece("b", 0, 2)], 3)


def test_a_folder_without_rows_and_a_path_that_is_no_folder_are_refused(tmp_path):
    with pytest.raises(UsageError, match="has no Parquet file with rows on this host"):
        Dataset(str(tmp_path)).shard(1, rank=0, size=1)
    with pytest.raises(UsageError, match="is on no mounted file system"):
        Dataset("hdfs://host/table").shard(1, rank=0, size=1)
    written(tmp_path, [4])
    assert len(Dataset(f"file://{tmp_path}").shard(2, rank=0, size=1)) == 2
