"""A DataFrame of a real Spark, dealt out to ranks by row groups."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import distrun.spark

EXAMPLE = Path(__file__).parents[3] / "examples" / "spark_digits.py"


def test_every_row_reaches_a_rank_in_every_epoch_and_the_ranks_step_together(spark, tmp_path):
    from pyspark.sql.functions import array, col

    table = spark.range(1000).select(col("id"), (col("id") * 0.5).alias("y"), array("id", "id").alias("pair"))
    data = distrun.spark.dataset(table, str(tmp_path / "table"), num_proc=2, columns=["id", "pair"])

    def read(data):
        import numpy as np

        import distrun

        distrun.init()
        batches = data.shard(32, shuffle=True, seed=3)
        epochs = []
        for _ in range(2):
            seen = []
            for batch in batches:
                distrun.allreduce(np.ones(1))  # uneven numbers of steps would stall
                assert sorted(batch) == ["id", "pair"]
                assert (batch["pair"] == batch["id"][:, None]).all()
                assert len(batch["id"]) == 32
                seen += batch["id"].tolist()
            epochs.append(seen)
        return epochs

    first, second = distrun.spark.run(read, (data,), num_proc=2)
    for epoch in range(2):
        assert set(first[epoch]) | set(second[epoch]) == set(range(1000))
        assert len(first[epoch]) == len(second[epoch])
    assert first[0] != first[1]


def test_the_example_learns_digits_and_prints_each_line_once(java, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    environ = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, str(EXAMPLE)]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert re.findall(r"^\[0\] epoch (\d):", done.stdout, re.MULTILINE) == ["1", "2", "3", "4", "5"], done.stderr
    assert float(re.findall(r"^right: ([\d.]+)%$", done.stdout, re.MULTILINE)[0]) > 80
