"""Frameworks, inside a rank: models of three sizes, checked and measured, alone and data parallel by turns.

A process has one way of training in parallel, since those of the frameworks claim the process for themselves. So each
measures the plain step, too: how much is added to that can be compared.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.support import ranks
from benchmarks.support.measuring import Rounds

Array = NDArray[np.float32]

BATCH = 32
RATE = 0.01
CHECKED = 5
"""The number of steps before the weights are checked."""
ALONE = "alone"


@dataclass(frozen=True)
class Size:
    """A multilayer perceptron, and how many blocks of how many steps it is trained for."""

    label: str
    widths: tuple[int, ...]
    rounds: Rounds

    def weights(self) -> list[tuple[Array, Array]]:
        """Return kernel and bias of each layer, the same on all ranks; signals keep their size through 100 layers."""
        random = np.random.default_rng(1)
        layers = zip(self.widths, self.widths[1:], strict=False)
        return [(_normal(random, (i, o)) * np.float32((2 / i) ** 0.5), np.zeros(o, np.float32)) for i, o in layers]

    def batch(self) -> tuple[Array, Array]:
        """Return this rank's features and targets."""
        random = np.random.default_rng(100 + rank())
        return _normal(random, (BATCH, self.widths[0])), _normal(random, (BATCH, self.widths[-1]))


def _normal(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return random.standard_normal(shape, np.float32)


SMALL = Size("4.8k parameters", (64, 64, 10), Rounds(6, turn=30))
TENSORS_100 = Size("100 small tensors", (32,) * 51, Rounds(5, turn=8))
TENSORS_200 = Size("200 small tensors", (32,) * 101, Rounds(5, turn=8))
LARGE = Size("25M parameters", (2048,) * 7, Rounds(3, turn=2))


def rank() -> int:
    """Return this rank as the launcher tells it, since programs that train without distrun cannot ask it."""
    return int(os.environ["RANK"])


def rendezvous_facts() -> tuple[str, int, int]:
    """Return the address of JAX's coordinator, the number of processes, and which of them this is."""
    return f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}", ranks.SIZE, rank()


@dataclass(frozen=True)
class Training:
    """A model in training."""

    run: Callable[[int], float]
    """Take that many steps, after one that does not count, and return the seconds of each."""
    weights: Callable[[], Iterable[Any]]
    """Return kernels and biases, layer by layer."""


def steps(step: Callable[[], object], settle: Callable[[], object] = lambda: None) -> Callable[[int], float]:
    """Return a `Training.run` for a step that is a function; `settle` waits until the steps are computed."""

    def run(count: int) -> float:
        step()
        settle()
        begun = time.perf_counter()
        for _ in range(count):
            step()
        settle()
        return (time.perf_counter() - begun) / count

    return run


@dataclass(frozen=True)
class Found:
    """The results of a training in this rank: weights after some steps, and the seconds of its steps by block."""

    digest: str
    sample: list[float]
    seconds: list[float]


Ways = Mapping[str, Callable[[Size], Training]]
"""The two ways of training: the plain one, `ALONE`, and another one."""


def main(sizes: Sequence[Size], systems: Mapping[str, Callable[[], Ways]]) -> None:
    """Run a framework's program: train by the system that the arguments choose, and write the results."""
    parser = ranks.arguments()
    parser.add_argument("--system", choices=systems, required=True)
    options = parser.parse_args()
    ranks.watch(options.deadline)
    ways = systems[options.system]()
    found = {size.label: _measure(size, ways, options.quick) for size in sizes}
    path_of(options.result, rank()).write_text(json.dumps(found))


def path_of(result: Path, rank: int) -> Path:
    """Return the file into which a rank writes its results."""
    return result.with_suffix(f".{rank}.json")


def _measure(size: Size, ways: Ways, quick: bool) -> dict[str, dict[str, Any]]:
    """Measure blocks of steps by turns. Ranks begin plain blocks together; in others they wait anyway."""
    rounds = size.rounds.shortened() if quick else size.rounds
    started = {name: start(size) for name, start in ways.items()}
    found = {name: _check(training) for name, training in started.items()}
    for _ in range(rounds.count):
        for name, training in started.items():
            gc.collect()
            found[name].seconds.append(training.run(rounds.turn))
    return {name: asdict(each) for name, each in found.items()}


def _check(training: Training) -> Found:
    training.run(CHECKED - 1)
    digest, sample = hashlib.sha256(), []
    for weights in training.weights():
        flat = np.asarray(weights).ravel()
        digest.update(flat.tobytes())
        sample += flat[:: max(1, flat.size // 8)].tolist()
    return Found(digest.hexdigest(), sample, [])
