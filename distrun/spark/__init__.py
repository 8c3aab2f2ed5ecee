"""Training on a Spark cluster: Spark places the tasks, distrun starts a rank beside each and connects them.

    results = distrun.spark.run(train, args=(0.1,), num_proc=4)

`run` has the signature of Horovod's `horovod.spark.run`. The tasks are those of one barrier stage. Each starts a
process of its own, which is an agent: the rank is its child, so that a rank that is killed takes neither Spark's Python
worker nor the executor with it. The process of task 0 is the launcher, which the others call, so that nobody has to
reach the driver. Sessions of Spark Connect work too.

| module | what it has |
| --- | --- |
| `runner` | `run`: what is asked for, the job's end, its story |
| `sessions` | how tasks are given to Spark: classic, and by Spark Connect |
| `task` | the code of a task: starts the agent's process, waits for it |
| `live` | the output of ranks, from task 0 to the driver |
| `agent` | the process of a task: launcher or joining host |
| `assignment` | what a task is to do and what it reports, as data |
| `datasets` | `dataset`: a DataFrame as Parquet files, dealt out to the ranks by row groups |

pyspark comes with the extra `spark`. A script that does not import this module has nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distrun.spark.datasets import Dataset as Dataset, dataset as dataset
    from distrun.spark.runner import run as run

_HOMES = {"run": "runner", "dataset": "datasets", "Dataset": "datasets"}

__all__ = ["Dataset", "dataset", "run"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'distrun.spark' has no attribute {name!r}")
    from importlib import import_module

    needed = "pyspark" if name == "run" else "pyarrow"
    try:
        import_module(needed)
    except ImportError as error:
        raise ImportError(f"distrun.spark.{name} needs {needed} ({error}): pip install 'distrun[spark]'") from None
    value: object = getattr(import_module(f"distrun.spark.{_HOMES[name]}"), name)
    globals()[name] = value  # the next access does not come here
    return value
