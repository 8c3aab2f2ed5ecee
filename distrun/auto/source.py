"""Reading a script before it runs: what cannot be right on several ranks, and numbers that will differ.

Only the script's own file is read. What it does through other files is noticed at run time.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
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


@dataclass
class ScriptFacts:
    """The findings from one source file."""

    refusals: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    """The reasons to refuse it, each with the lines to write instead."""
    warnings: list[str] = field(default_factory=list)
    """Clauses about the numbers it prints that will describe one rank's part only."""


def check(program: Sequence[str]) -> None:
    """Refuse a program whose source shows that it cannot be right. Warn about numbers that describe one part only."""
    path = running.source_of(program)
    if path is None or not path.is_file():
        return
    found = facts(path)
    for reason, lines in found.refusals[:1]:
        refusing.refuse(reason, lines)
    if distrun.rank() == 0:
        for warning in found.warnings:
            output.tell(f"distrun --auto: warning: {warning}")


def facts(path: Path) -> ScriptFacts:
    """Return the findings from a source file, or none if it cannot be parsed, as running it will show the error."""
    found = ScriptFacts()
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (OSError, SyntaxError, ValueError):
        return found
    for node in ast.walk(tree):
        for module in _imports(node):
            package = module.partition(".")[0]
            if package in DISTRIBUTING:
                line = getattr(node, "lineno", 0)
                reason = f"{path.name}:{line} imports {module}: {DISTRIBUTING[package]}"
                found.refusals.append((reason, _LINES.get(package, _WITHOUT)))
        if isinstance(node, ast.Call) and (name := called(node)) in _WRAPPERS:
            reason = f"{path.name}:{node.lineno} calls {name}: the script distributes by itself"
            found.refusals.append((reason, _WITHOUT))
    if job.current.mode == "global":
        found.refusals += [
            (f"{path.name}:{line} decides by what each rank counts in its own part of the batches: {text}", _COUNTING)
            for line, text in partial_decisions(tree)
        ]
    found.warnings = [f"{path.name}:{line}: {text}" for line, text in partial_numbers(tree)]
    return found


def _imports(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module]
    return []
