"""Training on a Ray cluster: Ray places the workers, distrun connects them.

    with distrun.ray.Executor(num_workers=4, gpus_per_worker=1) as executor:
        results = executor.run(train, args=(config,))

`Executor` has the names and meanings of Horovod's `RayExecutor`. Its workers are Ray actors, each a rank, and live from
call to call. `Trainer` is Ray Train's trainer with distrun between its workers, for Ray Data, Tune and checkpoints.
`Config` makes distrun the backend of any trainer.

Ray comes with the extra `ray`, Ray Train with `pip install 'ray[train]'`. distrun does not need Ray unless a script
imports this module.

The room:

| module | content |
| --- | --- |
| `executor` | `Executor`: calls of functions on workers |
| `workers` | starting workers in a placement group, making them ranks, ending them |
| `options` | the arguments of an executor, checked |
| `placement` | pure: bundles, and the ranks of workers by node |
| `world` | computes the variables of each rank from the facts about all workers |
| `worker` | the actor: a rank of the world |
| `failures` | the results of a call, or its failures, which was the first, and the error that is raised for it |
| `train` | `Trainer`, and `Config` and `Backend` for any trainer of Ray Train |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distrun.ray.executor import Executor as Executor
    from distrun.ray.train import Config as Config, Trainer as Trainer

_HOMES = {"Executor": "executor", "Config": "train", "Trainer": "train"}

__all__ = ["Config", "Executor", "Trainer"]

if not TYPE_CHECKING:  # to type checkers, a module with `__getattr__` has all names

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'distrun.ray' has no attribute {name!r}")
        from importlib import import_module

        home = _HOMES[name]
        try:
            import_module("ray")
            if home == "train":
                import_module("ray.train")
        except ImportError as error:
            package = "'distrun[ray]'" if home == "executor" else "'ray[train]'"
            raise ImportError(f"distrun.ray.{name} needs Ray ({error}): pip install {package}") from None
        value: object = getattr(import_module(f"distrun.ray.{home}"), name)
        globals()[name] = value  # the next access does not come here
        return value
