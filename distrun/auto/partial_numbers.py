"""Numbers in a training loop that describe rank 0's part where the script means the batch, found in its source.

A loss that the script reads is the loss of the whole batch, but what a loop counts by `len(x)`, `x.size(0)` or sums
over the samples describes the part. So wrong numbers are found where these are printed, or divided by one another:

- a count divided by something that is not counted in the loop: `correct / len(dataset)`;
- a loss divided by the size of the part, `loss.item() / len(x)`, or by a count, `total_loss / seen`;
- a count, or the size of the part, printed alone: `print(correct)`.

A script that uses a count for a decision, other than whether to print, cannot be right on several ranks.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_PRINTING = {"print", "format", "write", "set_description", "set_postfix", "info", "debug", "add_scalar"}
_SIZES = {"len", "size", "numel"}
_SUMS = {"sum", "count_nonzero"}
_READERS = {"item", "tolist", "float"}
_ARITHMETIC = (ast.BinOp, ast.UnaryOp, ast.Name, ast.Constant, ast.operator, ast.unaryop, ast.expr_context)


@dataclass
class _Names:
    """The names in the training loops of a scope, by what they hold."""

    bound: set[str] = field(default_factory=set)
    """Names that are bound in a loop."""
    sizes: set[str] = field(default_factory=set)
    """Names bound in a loop to the size of a part."""
    counted: set[str] = field(default_factory=set)
    """Names that add up something that depends on the size of a part."""
    losses: set[str] = field(default_factory=set)
    """Names of losses that `backward` is called on, and of their terms."""
    read: set[str] = field(default_factory=set)
    """Names that hold, or add up, numbers read from a loss."""


def partial_numbers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield each line where a number of rank 0's part is mistaken for one of the batch, and a clause about it."""
    found: dict[int, str] = {}
    for nodes, loops in _scopes(tree):
        names = _names_of(loops)
        for line, text in [*_divisions(nodes, names), *_printed(nodes, loops, names)]:
            found.setdefault(line, text)
    yield from sorted(found.items())


def partial_decisions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the lines where the script decides by a count in a part, each with the condition."""
    for nodes, loops in _scopes(tree):
        counted = _names_of(loops).counted
        for node in nodes:
            if not isinstance(node, (ast.If, ast.While)) or all(map(_is_printing, node.body)):
                continue
            if any(isinstance(each, ast.Compare) and _ids(each) & counted for each in ast.walk(node.test)):
                yield node.lineno, ast.unparse(node.test)


def _scopes(tree: ast.AST) -> Iterator[tuple[list[ast.AST], list[ast.For | ast.While]]]:
    """Yield the nodes of each function, and of the module, with the training loops among them."""
    for scope in [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.Module))]:
        nodes = list(_own_nodes(scope))
        yield nodes, [node for node in nodes if isinstance(node, (ast.For, ast.While)) and _is_innermost(node)]


def _is_printing(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and called(statement.value) in _PRINTING
    )


def called(call: ast.Call) -> str:
    """Return the last part of the name of the called function, such as `backward`, or empty if it has none."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _names_of(loops: Sequence[ast.For | ast.While]) -> _Names:
    found = _Names()
    for loop in loops:
        nodes = list(_own_nodes(loop))
        found.bound |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        found.losses |= _losses(nodes)
        for name, value in _assignments(nodes):
            if _is_size(value, found):
                found.sizes.add(name)
            elif _is_read(value, found):
                found.read.add(name)
        for node in nodes:
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                if node.target.id in found.losses:
                    continue  # a term of the loss
                if _depends_on_size(node.value, found):
                    found.counted.add(node.target.id)
                elif _is_read(node.value, found):
                    found.read.add(node.target.id)
    return found


def _divisions(nodes: Sequence[ast.AST], names: _Names) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)):
            continue
        text = ast.unparse(node)
        above, below = _ids(node.left), _ids(node.right)
        if names.counted & above:
            if not names.counted & below:
                yield node.lineno, f"{text} divides what rank 0 has counted in its part by what is not counted there"
        elif _is_read(node.left, names) and not _holds_size(node.left, names):
            if _holds_size(node.right, names):
                yield node.lineno, f"{text} divides the loss of the whole batch by the size of rank 0's part"
            elif names.counted & below:
                yield node.lineno, f"{text} divides losses of whole batches by what rank 0 has counted in its part"


def _printed(
    nodes: Sequence[ast.AST], loops: Sequence[ast.For | ast.While], names: _Names
) -> Iterator[tuple[int, str]]:
    inside = {id(node) for loop in loops for node in _own_nodes(loop)}
    for node in nodes:
        for value in _values_printed(node):
            text = ast.unparse(value)
            if isinstance(value, ast.Name) and value.id in names.counted:
                yield value.lineno, f"{text} is printed: it is what rank 0 has counted in its part"
            elif id(node) in inside and _holds_size(value, names) and not _has_division(value):
                yield value.lineno, f"{text} is printed: it is of rank 0's part of the batch"


def _values_printed(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.FormattedValue):
        yield node.value
    elif isinstance(node, ast.Call) and called(node) in _PRINTING:
        given = [*node.args, *(each.value for each in node.keywords)]
        yield from (each for each in given if not isinstance(each, (ast.JoinedStr, ast.Call)))
    elif (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Mod)
        and isinstance(getattr(node.left, "value", None), str)
    ):
        yield from node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]


def _losses(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the names in calls of `backward`, and the names that these are computed from by arithmetic alone."""
    of_calls = [node for node in nodes if isinstance(node, ast.Call) and called(node) == "backward"]
    found = {name for call in of_calls for name in _ids(call)}
    for name, value in reversed(list(_assignments(nodes))):
        if name in found and all(isinstance(each, _ARITHMETIC) for each in ast.walk(value)):
            found |= _ids(value)
    return found


def _assignments(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value


def _is_size(value: ast.AST, names: _Names) -> bool:
    """Whether an expression is the size of a part, such as `len(x)`, `x.size(0)` or `x.shape[0]`."""
    if isinstance(value, ast.Name):
        return value.id in names.sizes
    if isinstance(value, ast.Subscript):
        return _is_size(value.value, names)
    if isinstance(value, ast.Attribute):
        return value.attr == "shape" and bool(_ids(value) & names.bound)
    return isinstance(value, ast.Call) and called(value) in _SIZES and bool(_ids(value) & names.bound)


def _holds_size(value: ast.AST, names: _Names) -> bool:
    return any(_is_size(node, names) for node in ast.walk(value))


def _is_read(value: ast.AST, names: _Names) -> bool:
    """Whether an expression contains a number read from a loss, such as `loss.item()`."""
    for node in ast.walk(value):
        if isinstance(node, ast.Name) and node.id in names.read:
            return True
        if isinstance(node, ast.Call) and called(node) in _READERS:
            of = node.func.value if isinstance(node.func, ast.Attribute) else next(iter(node.args), None)
            if isinstance(of, ast.Name) and of.id in names.losses:
                return True
    return False


def _depends_on_size(value: ast.AST, names: _Names) -> bool:
    """Whether an expression contains the number of samples or a sum over them: `len(x)`, `x.size(0)`, `x.sum()`.

    A loss divided by the size does not count: `_divisions` finds it.
    """
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div) and _is_read(value.left, names):
        return False
    calls = {called(node) for node in ast.walk(value) if isinstance(node, ast.Call)}
    return _holds_size(value, names) or bool(calls & (_SUMS | _SIZES)) or bool(_ids(value) & names.counted)


def _is_innermost(loop: ast.For | ast.While) -> bool:
    """Whether a loop calls `backward`, but no loop inside it does."""
    calls = [node for node in _own_nodes(loop) if isinstance(node, ast.Call) and called(node) == "backward"]
    inner = [node for node in _own_nodes(loop) if isinstance(node, (ast.For, ast.While))]
    return bool(calls) and not any(node in calls for each in inner for node in _own_nodes(each))


def _has_division(value: ast.AST) -> bool:
    return any(isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) for node in ast.walk(value))


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope, except those inside its functions and classes."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield child
            yield from _own_nodes(child)


def _ids(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
