"""Training on a Spark cluster: Spark places the tasks, distrun starts a rank beside each and connects them.

    results = distrun.spark.run(train, args=(0.1,), num_proc=4)

`run` has the signature of Horovod's `horovod.spark.run`. It runs one barrier stage. Each of its tasks starts a process
of its own, which is an agent with the rank as its child, so that a rank that is killed takes neither Spark's Python
worker nor the executor with it. The process of task 0 is the launcher, and the others connect to it, so that no task
has to reach the driver. Sessions of Spark Connect work too.

pyspark comes with the extra `spark`. distrun does not need it unless a script imports this module.

The room:

| module | content |
| --- | --- |
| `runner` | `run`: checks the arguments, runs the job, and returns its results or raises its failure |
| `sessions` | submitting tasks to Spark: classic, and by Spark Connect |
| `task` | the code of a task: starts the agent's process, and waits for it |
| `live` | the output of ranks, from task 0 to the driver |
| `agent` | the process of a task: launcher or joining host |
| `assignment` | the assignment and the report of a task, as data |
| `datasets` | `dataset`: a DataFrame as Parquet files, divided among the ranks by row groups |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distrun.spark.datasets import Dataset as Dataset, dataset as dataset
    from distrun.spark.runner import run as run

_HOMES = {"run": "runner", "dataset": "datasets", "Dataset": "datasets"}

__all__ = ["Dataset", "dataset", "run"]

if not TYPE_CHECKING:  # to type checkers, a module with `__getattr__` has all names

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
