"""Frameworks: the cost that data parallelism adds to a step of TensorFlow, JAX and Keras, by theirs and by distrun."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.frameworks.ranks import ALONE, BATCH, path_of
from benchmarks.support import launchers, processes, ranks
from benchmarks.support.comparison import Comparison
from benchmarks.support.measuring import Summary, summary

DEADLINE = 240.0
"""The time limit of one program in seconds."""
TURNS = 2
"""The number of turns of each program: whatever the machine does meanwhile happens to all of them."""
DISTRUN, MULTI_WORKER, GLOO, DATA_PARALLEL = "distrun", "MultiWorkerMirrored", "gloo", "DataParallel"
TOLERANCE = 0.01
"""The allowed difference between weights trained in parallel, relative to theirs from weights trained alone."""
SETTINGS = {
    **ranks.one_thread(),
    "NPROC": "1",  # by this XLA counts the threads it has on CPUs
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


@dataclass(frozen=True)
class Steps:
    """The measurements of two ranks for a training of one size."""

    seconds: list[float]
    """The duration of a step on the slowest rank, for each block."""
    digests: list[str]
    """The digest of each rank's weights after the first steps."""
    sample: list[float]
    """Some of rank 0's weights after the first steps."""


Trainings = dict[str, Steps]
"""The results by training: `ALONE`, and a system."""


@dataclass(frozen=True)
class Job:
    """A module that trains models of all sizes, alone and by one system."""

    program: str
    system: str
    row: str = ""
    """The text before the size in the table."""
    options: Sequence[str] = ()
    """The launcher's options."""
    environ: Mapping[str, str] = field(default_factory=dict)

    def run(self, quick: bool, environ: Mapping[str, str], work: Path) -> dict[str, Trainings]:
        """Run the program; return both trainings of each row.

        Raises:
            processes.ProcessError: it failed or took too long.
        """
        result = work / "frameworks"
        command = [*launchers.distrun(), "-np", str(ranks.SIZE), *self.options, sys.executable, "-m", self.program]
        command += ["--system", self.system, "--result", str(result), "--deadline", str(DEADLINE)]
        command += ["--quick"] if quick else []
        processes.run(command, {**environ, **SETTINGS, **self.environ}, DEADLINE + processes.GRACE)
        found = [json.loads(path_of(result, rank).read_text()) for rank in range(ranks.SIZE)]
        return {
            self.row + size: {name: _steps([each[size][name] for each in found]) for name in found[0][size]}
            for size in found[0]
        }


def _steps(found: Sequence[Mapping[str, Any]]) -> Steps:
    seconds = [max(block) for block in zip(*(each["seconds"] for each in found), strict=True)]
    return Steps(seconds, [each["digest"] for each in found], found[0]["sample"])


@dataclass(frozen=True)
class Subject:
    """A table: jobs that train the same models, by distrun and by another system."""

    title: str
    jobs: Sequence[Job]
    note: str
    """An explanation of the systems' names."""

    def compare(self, quick: bool, environ: Mapping[str, str], work: Path) -> Comparison:
        """Let the jobs take turns; return their results as a table."""
        rows: dict[str, dict[str, list[Trainings]]] = {}
        for _ in range(1 if quick else TURNS):
            for job in self.jobs:
                for row, trainings in job.run(quick, environ, work).items():
                    rows.setdefault(row, {}).setdefault(job.system, []).append(trainings)
        comparison = self._heading()
        for row, systems in rows.items():
            _check(row, systems)
            comparison.add(row, _results(systems))
        return comparison

    def _heading(self) -> Comparison:
        peer = next(job.system for job in self.jobs if job.system != DISTRUN)
        return Comparison(
            f"{self.title}, batch {BATCH}, SGD, one thread, {ranks.SIZE} ranks",
            "model",
            [ALONE, peer, DISTRUN, _adds(peer), _adds(DISTRUN)],
            [(peer, DISTRUN), (_adds(peer), _adds(DISTRUN))],
            notes=[
                f"{ALONE}: each rank for itself, at the same time. {self.note}",
                f"{peer} and {DISTRUN} have processes of their own, which also train alone, by turns: what they add "
                "is the difference.",
            ],
        )


def _keras(backend: str, system: str) -> Job:
    return Job("benchmarks.frameworks.keras", system, f"{backend}: ", environ={"KERAS_BACKEND": backend})


SUBJECTS = (
    Subject(
        "TensorFlow, step in a tf.function",
        [
            Job("benchmarks.frameworks.tensorflow", MULTI_WORKER, options=["--tf-config"]),
            Job("benchmarks.frameworks.tensorflow", DISTRUN),
        ],
        f"{MULTI_WORKER}: tf.distribute.MultiWorkerMirroredStrategy, in a loop of one's own; "
        f"{DISTRUN}: distrun.tensorflow.DistributedGradientTape.",
    ),
    Subject(
        "JAX, jitted step with optax",
        [Job("benchmarks.frameworks.jax", GLOO), Job("benchmarks.frameworks.jax", DISTRUN)],
        f"{GLOO}: jax.distributed, and jax.lax.pmean of the gradients in jax.shard_map; "
        f"{DISTRUN}: distrun.jax.DistributedOptimizer.",
    ),
    Subject(
        "Keras, step of fit",
        [_keras("jax", DATA_PARALLEL), *(_keras(backend, DISTRUN) for backend in ("jax", "tensorflow", "torch"))],
        f"{DATA_PARALLEL}: keras.distribution.DataParallel over jax.distributed, which Keras has for JAX alone; "
        f"{DISTRUN}: distrun.keras.DistributedOptimizer.",
    ),
)


def compare(quick: bool, environ: Mapping[str, str], work: Path) -> Iterator[Comparison]:
    """Yield the tables of all subjects.

    Raises:
        processes.ProcessError: a program failed or took too long, or it has trained something wrong.
    """
    for subject in SUBJECTS:
        yield subject.compare(quick, environ, work)


def _adds(system: str) -> str:
    return f"{system} adds"


def _check(row: str, systems: Mapping[str, Sequence[Trainings]]) -> None:
    """Check that ranks have the same bits, unless they trained alone, and the systems the same weights."""
    for system, turns in systems.items():
        for name, training in turns[0].items():
            if (len(set(training.digests)) == 1) != (name != ALONE):
                raise processes.ProcessError(
                    f"{row}: {system}: {name}: the ranks' weights have the digests {training.digests}"
                )
    samples = {system: np.array(turns[0][system].sample) for system, turns in systems.items()}
    alone = np.array(systems[DISTRUN][0][ALONE].sample)
    apart = np.abs(samples[DISTRUN] - alone).max()
    for system, sample in samples.items():
        if not (difference := np.abs(sample - samples[DISTRUN]).max()) <= TOLERANCE * apart:
            raise processes.ProcessError(f"{row}: {system}: weights differ by {difference} from those by {DISTRUN}")


def _results(systems: Mapping[str, Sequence[Trainings]]) -> dict[str, Summary]:
    alone = [seconds for turns in systems.values() for trainings in turns for seconds in trainings[ALONE].seconds]
    results = {ALONE: summary(alone)}
    for system, turns in systems.items():
        results[system] = summary([seconds for trainings in turns for seconds in trainings[system].seconds])
        added = [median(trainings[system].seconds) - median(trainings[ALONE].seconds) for trainings in turns]
        results[_adds(system)] = summary(added)
    return results
