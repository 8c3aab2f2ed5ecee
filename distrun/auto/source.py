"""Reading a script before it runs: what cannot be right on several ranks, and numbers that will differ.

Only the script's own file is read. What it does through other files is noticed at run time.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

import distrun
from distrun.auto import job, output, refusing, running
from distrun.auto.partial_numbers import called, partial_decisions, partial_numbers

DISTRIBUTING = {
    "distrun": "it uses distrun itself",
    "horovod": "it uses Horovod, which distrun runs without --auto",
    "accelerate": "accelerate distributes by itself",
    "lightning": "Lightning distributes by itself",
    "pytorch_lightning": "Lightning distributes by itself",
    "deepspeed": "DeepSpeed distributes by itself",
    "fairscale": "fairscale distributes by itself",
    "jax": "there is nothing in a JAX program that could be changed while it runs",
}
"""Packages that a script must not import in this mode, and why."""
_LINES = {
    "horovod": ("distrun --horovod -np N python script.py",),
    "jax": (
        "import distrun.jax as distrun",
        "grads = distrun.allreduce_gradients(grads)  # see docs/coming-from-horovod.md",
    ),
}
_WITHOUT = ("distrun -np N python script.py  # without --auto",)
_COUNTING = (
    "count += batch_size  # the script's own constant, the same on all ranks; or count steps",
    "distrun --auto=scale ...  # each rank trains on batches of its own, as with DDP",
)
_WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "init_process_group")


def check(program: Sequence[str]) -> None:
    """Refuse a program whose source shows that it cannot be right. Warn about numbers that describe one part only."""
    path = running.source_of(program)
    if path is None or not path.is_file():
        return
    refusals, warnings = facts(path)
    for reason, lines in refusals[:1]:
        refusing.refuse(reason, lines)
    if distrun.rank() == 0:
        for warning in warnings:
            output.tell(f"distrun --auto: warning: {warning}")


def facts(path: Path) -> tuple[list[tuple[str, tuple[str, ...]]], list[str]]:
    """Return the findings from a source file, or none if it cannot be parsed, as running it will show the error.

    Returns:
        The reasons to refuse it, each with the lines to write instead, and clauses about the numbers it prints that
        will describe one rank's part only.
    """
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (OSError, SyntaxError, ValueError):
        return [], []
    refusals = []
    for node in ast.walk(tree):
        for module in imports(node):
            package = module.partition(".")[0]
            if package in DISTRIBUTING:
                line = getattr(node, "lineno", 0)
                reason = f"{path.name}:{line} imports {module}: {DISTRIBUTING[package]}"
                refusals.append((reason, _LINES.get(package, _WITHOUT)))
        if isinstance(node, ast.Call) and (name := called(node)) in _WRAPPERS:
            reason = f"{path.name}:{node.lineno} calls {name}: the script distributes by itself"
            refusals.append((reason, _WITHOUT))
    if job.current.mode == "global":
        refusals += [
            (f"{path.name}:{line} decides by what each rank counts in its own part of the batches: {text}", _COUNTING)
            for line, text in partial_decisions(tree)
        ]
    return refusals, [f"{path.name}:{line}: {text}" for line, text in partial_numbers(tree)]


def imports(node: ast.AST) -> list[str]:
    """Return the names of the modules that a statement imports, or imports from."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module]
    return []
