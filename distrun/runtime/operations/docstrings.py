"""The sections that the docstrings of all collectives share, for arrays and tensors of every library.

In the source, the docstring of a collective says what is particular to it. `complete` adds what it leaves out, by the
function's name and parameters: notes on the kind of collective, the parameters, the result and the errors. Modules call
`complete_all` at their end, so `help(distrun.allreduce)` shows the whole text. In the same way docs/site/rendering.py
completes the reference pages, which are made from the source. Functions are not wrapped, so calls cost nothing more.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from inspect import cleandoc
from typing import Any, NamedTuple

WIDTH = 120
"""The characters to which lines are filled."""


class Kind(NamedTuple):
    """Texts for the docstrings of one kind of collective, in all its forms."""

    tensor: str
    """The requirements on each tensor."""
    result: str
    """The result of the form that takes one tensor and is not in place."""
    results: str
    """The results of a group, as a noun."""
    refused: str
    """Examples of impossible arguments."""
    op: str = ""
    notes: str = ""
    """A paragraph that follows what the docstring says."""


KINDS = {
    "allreduce": Kind(
        tensor="of one shape and dtype on all ranks.",
        result="A new tensor of the same shape and dtype.",
        results="reduced tensors",
        refused="`op=Min` for complex numbers",
        op="`Average` (the default), `Sum`, `Min`, `Max` or `Product`.",
        notes="All ranks get the same bits. float16 and bfloat16 are summed in float32, and an average of integers is "
        "rounded towards zero.",
    ),
    "reducescatter": Kind(
        tensor="of one shape and dtype on all ranks, with at least one dimension.",
        result="A new tensor of this rank's rows.",
        results="reduced rows of this rank",
        refused="`op=Max`, or a 0-dimensional tensor",
        op="`Average` (the default) or `Sum`.",
        notes="Each rank keeps an even share of the rows. If they do not divide evenly, the first ranks keep one row "
        "more than the others.",
    ),
    "allgather": Kind(
        tensor="of one dtype and, except for the extent of dimension 0, one shape on all ranks.",
        result="A new tensor, the same on all ranks.",
        results="gathered tensors",
        refused="a 0-dimensional tensor",
    ),
    "broadcast": Kind(
        tensor="of one shape and dtype on all ranks. Only the root's elements matter.",
        result="A new tensor, on the root as well.",
        results="tensors of the root",
        refused="a `root_rank` outside the process set",
    ),
    "alltoall": Kind(
        tensor="of one dtype and, except for the extent of dimension 0, one shape on all ranks. Its rows are sent in "
        "order, the first ones to rank 0.",
        result="The received rows, in the order of the ranks that sent them. With `splits`, a pair: these rows, and an "
        "int32 array of the number of rows from each rank, in host memory.",
        results="received rows",
        refused="`splits` that do not fit the rows or the ranks, or a 0-dimensional tensor",
    ),
}

TENSORS = {
    "tensor": "{}",
    "tensors": "at least one, in the same order on all ranks, each {}",
    "tree": "an array or a pytree of arrays, of one structure on all ranks, each {} None stays None.",
}
"""The parameters that hold tensors, with a place for what `Kind.tensor` says."""

PARAMETERS = {
    "name": "how the ranks match the operation. Unnamed calls are matched by their order.",
    "average": "Horovod's older way of choosing between `Average` and `Sum`; not together with `op`.",
    "compression": "the form in which tensors travel between hosts; see `Compression`.",
    "prescale_factor": "multiplies the elements before they are reduced.",
    "postscale_factor": "multiplies the result.",
    "process_set": "the ranks that take part.",
    "root_rank": "the rank to copy from, counted in the world even if `process_set` is smaller.",
    "splits": "how many rows to send to each rank. None: as many to each. Splits on a GPU make the host wait for them.",
    "device_dense": "accepted for Horovod's sake.",
    "device_sparse": "accepted for Horovod's sake.",
    "ignore_name_scope": "accepted for Horovod's sake.",
}

_SECTION = re.compile(r"^(Args|Returns|Raises):\n", re.MULTILINE)
_ENTRY = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)


def complete_all(namespace: Mapping[str, Any]) -> None:
    """Complete the docstrings of a module's public functions, all of which are collectives.

    Args:
        namespace: the module's `globals()`, with `__all__`.
    """
    for name in namespace["__all__"]:
        function = namespace[name]
        if function.__doc__ is not None:  # `python -OO` has none
            parameters = [each for each in function.__annotations__ if each != "return"]
            function.__doc__ = complete(name, parameters, function.__doc__)


def complete(name: str, parameters: Sequence[str], docstring: str) -> str:
    """Return the docstring of a collective with the sections and entries that it leaves out.

    Args:
        name: of the function: a kind, with `grouped_` before it, and `_async` and `_` behind it.
        parameters: their names, in the order of the signature.
        docstring: as the source has it. What it says of a parameter, the result or an error stays.
    """
    head, *sections = _SECTION.split(cleandoc(docstring))
    own = dict(zip(sections[::2], sections[1::2], strict=True))
    kind = KINDS[name.removeprefix("grouped_").removesuffix("_").removesuffix("_async")]
    described = dict(_ENTRY.findall(own.get("Args", "")))
    args = {each: described.get(each) or _parameter(each, kind, name) for each in parameters}
    returns = own.get("Returns", "").strip() or _result(kind, name, parameters[0])
    raises = _errors(kind, name) | dict(_ENTRY.findall(own.get("Raises", "")))
    paragraphs = [head.strip(), *([textwrap.fill(kind.notes, WIDTH)] if kind.notes else [])]
    return "\n\n".join(
        [*paragraphs, _section("Args", args), f"Returns:\n{_filled(returns)}", _section("Raises", raises)]
    )


def _parameter(name: str, kind: Kind, function: str) -> str:
    if name in TENSORS:
        return TENSORS[name].format(kind.tensor) + (" The result overwrites it." if function.endswith("_") else "")
    return kind.op if name == "op" else PARAMETERS[name]


def _result(kind: Kind, function: str, tensors: str) -> str:
    is_in_place = function.endswith("_")
    if "_async" in function:
        untouched = "neither read nor change" if is_in_place else "do not change"
        return (
            f"A handle. Its `wait` returns and raises what `{function.replace('_async', '')}` does; {untouched} "
            f"`{tensors}` before it is done."
        )
    if is_in_place:
        return f"`{tensors}`."
    results = {"tensor": kind.result, "tree": "The tree with a result in place of each array."}
    return results.get(tensors, f"The {kind.results}, in the order of `tensors`.")


def _errors(kind: Kind, function: str) -> dict[str, str]:
    read_only = ", or a tensor that cannot be written to" if function.endswith("_") else ""
    errors = {
        "NotInitializedError": "before `init`.",
        "UsageError": f"an argument is impossible, such as {kind.refused}{read_only}.",
        "MismatchError": "the ranks disagree about shapes, dtypes or other arguments.",
        "StallError": "a rank did not make the call within the stall timeout.",
        "JobAbortedError": "a rank is gone.",
    }
    if "_async" in function:  # these two come with the result
        del errors["MismatchError"], errors["StallError"]
    return errors


def _section(title: str, entries: Mapping[str, str]) -> str:
    return "\n".join([f"{title}:", *[_filled(f"{name}: {text}", " " * 8) for name, text in entries.items()]])


def _filled(text: str, hanging: str = " " * 4) -> str:
    """Return the text indented by four spaces and filled. `hanging` is the indentation from the second line on."""
    line = f"    {text}"
    if len(line) <= WIDTH and "\n" not in line:  # as nearly all are: filling takes longer
        return line
    return textwrap.fill(" ".join(text.split()), WIDTH, initial_indent=" " * 4, subsequent_indent=hanging)
