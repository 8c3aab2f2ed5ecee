"""GPUs: packing gradients beside torch's ways of copying them, and a training step beside DDP's."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.support import launchers, processes
from benchmarks.support.comparison import Comparison
from benchmarks.support.measuring import Summary, exactly
from benchmarks.support.ranks import one_thread

MEMCPY, ONE_BY_ONE, FOREACH, DISTRUN, DDP, ALONE = "memcpy", "one by one", "_foreach_copy_", "distrun", "DDP", "alone"
DEADLINE = 300.0
"""The time limit of one program in seconds."""


def missing() -> str | None:
    """Return why nothing can be measured here, or None."""
    import torch

    if not torch.cuda.is_available():
        return "torch finds no GPU"
    try:
        import cupy  # noqa: F401
    except ImportError as error:
        return f"cupy cannot be imported ({error})"
    return None


def compare(quick: bool, environ: Mapping[str, str], work: Path) -> Iterator[Comparison]:
    """Yield three tables: packing, a step of one rank, and one of two ranks, which share a GPU where there is only one.

    Raises:
        processes.ProcessError: a program failed or took too long.
    """
    packing = Comparison(
        "packing the 161 gradients of ResNet-50 into one buffer, device time",
        "gradients",
        [MEMCPY, ONE_BY_ONE, FOREACH, DISTRUN],
        [(DISTRUN, MEMCPY), (ONE_BY_ONE, DISTRUN), (FOREACH, DISTRUN)],
        notes=[
            f"{MEMCPY}: as many elements from one tensor to another with one copy_; "
            f"{ONE_BY_ONE}: a copy_ for each gradient."
        ],
    )
    yield _fill(packing, "packing", 1, quick, environ, work)
    for ranks in (1, 2):
        step = Comparison(
            "training step of a transformer like GPT-2 small, bfloat16, AdamW, device time, "
            f"{ranks} rank{'s' * (ranks > 1)}",
            "model",
            [ALONE, DDP, DISTRUN],
            [(DDP, ALONE), (DISTRUN, ALONE), (DISTRUN, DDP)],
            notes=[f"{DDP}: over NCCL, gradient_as_bucket_view=True. Two ranks share a GPU where there is only one."],
        )
        yield _fill(step, "step", ranks, quick, environ, work)


def count_calls(environ: Mapping[str, str], work: Path) -> Comparison:
    """Return the calls of functions per operation, on simulated GPUs.

    Raises:
        processes.ProcessError: a program failed or took too long.
    """
    table = Comparison(
        "calls of functions that an operation on a GPU takes on the host, torch tensors, simulated GPU",
        "operation",
        ["1 rank", "2 ranks"],
        [],
        notes=["Calls of Python and of C functions by distrun's code, in all threads of rank 0; the least of 30 runs."],
        unit="n",
    )
    tests = Path(__file__).parents[2] / "tests"
    folders = [tests / "simulator", tests / "frameworks/torch/programs/gpu", tests / "support"]
    found: dict[str, dict[str, Summary]] = {}
    for ranks, column in enumerate(table.programs, 1):
        result = work / "calls"
        own = {
            "PYTHONPATH": os.pathsep.join([*map(str, folders), environ.get("PYTHONPATH", "")]),
            **{"SIMULATED_GPUS": str(ranks), "SIMULATED_KERNEL_CACHE": str(work / "kernels"), **one_thread()},
        }
        command = [*launchers.distrun(), "-np", str(ranks), sys.executable, "-m", "benchmarks.gpu.host"]
        processes.run([*command, "--result", str(result)], {**environ, **own}, DEADLINE)
        for name, count in json.loads(result.read_text()).items():
            found.setdefault(name, {})[column] = exactly(count)
    for name, counts in found.items():
        table.add(name, counts)
    return table


def _fill(
    table: Comparison, subject: str, ranks: int, quick: bool, environ: Mapping[str, str], work: Path
) -> Comparison:
    result = work / "gpu"
    command = [
        *launchers.distrun(),
        "-np",
        str(ranks),
        "--share-gpus",
        sys.executable,
        "-m",
        "benchmarks.gpu.ranks",
        subject,
    ]
    command += ["--result", str(result), *(["--quick"] if quick else [])]
    shared = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "8"}  # for DDP; distrun sets them itself
    processes.run(command, {**shared, **environ} if ranks > 1 else environ, DEADLINE)
    for row, found in json.loads(result.read_text()).items():
        table.add(row, {name: Summary(s["median"], tuple(s["quartiles"]), s["count"]) for name, s in found.items()})
    return table
