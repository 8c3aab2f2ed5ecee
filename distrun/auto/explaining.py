"""The text of `distrun --auto=explain`: what would be changed in a script, and what its source shows to be refused."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from distrun.auto import refusing, running, source
from distrun.auto.partial_numbers import called

_CHANGES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "torch": (
        ("DataLoader", "its batches are divided among the ranks; the order of the samples is the same on all"),
        ("backward", "the gradients of all ranks are averaged, weighted by the sizes of their parts"),
        ("step", "weights are rank 0's at the first step; every 100 steps the ranks compare them"),
        ("no_grad", "a DataLoader that is iterated in here is not divided: every rank sees all of it"),
        ("eval", "after this call a DataLoader is not divided: every rank sees all of it"),
        ("item", "of a loss in training: the loss of the whole batch"),
        ("save", "rank 0 alone writes; the others wait for it"),
        ("print", "rank 0 alone prints"),
    ),
    "keras": (
        ("fit", "each rank takes its part of each batch; weights are rank 0's at the start, gradients are averaged"),
        ("train_on_batch", "each rank takes its part of the batch; gradients are averaged"),
        ("train_step", "its loss must be a mean over the rows of the batch, which is tried after the first step"),
        ("compute_loss", "it must be a mean over the rows of the batch, which is tried after the first step"),
        ("add_loss", "it must be a mean over the rows of the batch, which is tried after the first step"),
        ("evaluate", "not divided: every rank sees all data"),
        ("predict", "not divided: every rank sees all data"),
        *((name, "on rank 0 alone") for name in ("ModelCheckpoint", "CSVLogger", "TensorBoard", "BackupAndRestore")),
        ("save", "rank 0 alone writes"),
        ("print", "rank 0 alone prints"),
    ),
}


def explain(program: Sequence[str]) -> int:
    """Print what a program's source shows, without running it. Return the exit status, 2 if it would be refused."""
    path = running.source_of(program)
    if path is None or not path.is_file():
        print(f"distrun --auto=explain: {program[-1]!r} has no source that could be read", file=sys.stderr)
        return 2
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        print(f"distrun --auto=explain: {path}:{error.lineno}: {error.msg}", file=sys.stderr)
        return 2
    refusals, warnings = source.facts(path)
    print(f"What distrun --auto would change in {path}:")
    for line in _changes(tree, path):
        print(f"  {line}")
    for warning in warnings:
        print(f"Note: {warning}")
    for reason, lines in refusals:
        print(refusing.text_of(reason, lines))
    if not refusals:
        print("Nothing was found that is refused; more is checked while the script runs.")
    return refusing.STATUS if refusals else 0


def _changes(tree: ast.AST, path: Path) -> list[str]:
    """Return a line for each function whose behaviour would change, with the lines where it is called or defined."""
    imported = {module.partition(".")[0] for node in ast.walk(tree) for module in source.imports(node)}
    places: dict[str, list[int]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):  # from tensorflow import keras
            imported |= {"keras"}.intersection(alias.name for alias in node.names)
        elif isinstance(node, ast.Call):
            places.setdefault(called(node), []).append(node.lineno)
        elif isinstance(node, ast.FunctionDef) and node.name in ("train_step", "compute_loss"):
            places.setdefault(node.name, []).append(node.lineno)
    lines = []
    for framework, changes in _CHANGES.items():
        if framework not in imported:
            continue
        for name, what in changes:
            if name in places:
                where = ", ".join(map(str, sorted(set(places[name]))))
                lines.append(f"{path.name}:{where}: {name}: {what}")
    return lines or ["nothing: it calls nothing of torch or Keras that is known"]
