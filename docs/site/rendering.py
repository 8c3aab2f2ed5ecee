"""Public names as Markdown: a heading, the signature, and the docstring with its sections as lists."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

import griffe

from distrun.runtime.operations import docstrings

WIDTH = 120
CODE_WIDTH = 100
"""The length from which a signature has a line for each parameter."""
ONE_LINE = re.compile(r"(_built|_enabled|_supported|_op)$")
"""Names of functions that are described in one line."""

_COMPLETED = f"{docstrings.__name__}.{docstrings.complete_all.__name__}"
_CODE = re.compile(r"(?:\A|(?<=\n\n))(?: {4}[^\n]+\n*)+")
_KINDS = griffe.DocstringSectionKind


def entry(name: str, forms: Sequence[tuple[str, griffe.Object]], level: int) -> str:
    """A public name with its section. `forms` are it and, of a collective, the grouped, asynchronous and other ones."""
    (_, first), *others = forms
    parts = [f"{'#' * level} {name}"]
    if first.is_function or has_constructor(first):
        parts.append(f"```python\n{signature(name, first)}\n```")
    parts += sections(first)
    if first.is_class:
        parts += members(name, first, level + 1)
    if others:
        parts += ["Other forms:", "\n".join(item(short(other, member), summary(member)) for other, member in others)]
    return "\n\n".join(parts)


def line(name: str, member: griffe.Object) -> str:
    """A constant, or a function that needs no more, as an item of a list."""
    return item(short(name, member) if member.is_function else name, summary(member))


def members(name: str, owner: griffe.Object, level: int) -> Iterator[str]:
    """The public attributes and methods of a class that have a docstring."""
    shown = [one for one in owner.members.values() if not one.is_alias and one.is_public and one.has_docstring]
    attributes = [one for one in shown if one.is_attribute]
    if attributes:
        yield "Attributes:"
        yield "\n".join(item(one.name, one.docstring.value) for one in attributes)
    for one in shown:
        if one.is_function and one.name != "__init__" and not one.name.startswith("__"):
            yield entry(f"{name}.{one.name}", [(one.name, one)], level)


def sections(member: griffe.Object) -> Iterator[str]:
    """The docstring, of a class with that of its constructor."""
    constructor = member.members.get("__init__") if member.is_class else None
    found = [*parsed(member)]
    if constructor is not None and not constructor.is_alias and constructor.has_docstring:
        found += [section for section in parsed(constructor) if section.kind is not _KINDS.text]
    for section in found:
        if section.kind is _KINDS.text:
            yield highlighted(section.value)
        elif section.kind in (_KINDS.parameters, _KINDS.raises):
            titles = {_KINDS.parameters: "Arguments:", _KINDS.raises: "Raises:"}
            yield titles[section.kind]
            yield "\n".join(item(each_name(each), each.description) for each in section.value)
        elif section.kind in (_KINDS.returns, _KINDS.yields):
            title = "Returns:" if section.kind is _KINDS.returns else "Yields:"
            yield filled(f"{title} {' '.join(each.description for each in section.value)}", "")
        elif section.kind is _KINDS.admonition:
            yield f"{section.title}:"
            yield highlighted(section.value.contents)
        else:
            raise ValueError(f"{member.path}: no way to show a section {section.kind.value}")


def each_name(each: griffe.DocstringElement) -> str:
    """The name of an argument, or of an error."""
    return str(getattr(each, "name", None) or each.annotation)


def parsed(member: griffe.Object) -> list[griffe.DocstringSection]:
    """The sections of a docstring, of collectives with those that importing their module adds."""
    text = member.docstring.value
    if member.is_function and _COMPLETED in member.module.imports.values():
        text = docstrings.complete(member.name, [each.name for each in member.parameters], text)
    docstring = griffe.Docstring(text, parent=member)
    return docstring.parse("google", warn_unknown_params=False, warn_missing_types=False, warnings=False)


def summary(member: griffe.Object) -> str:
    """The first paragraph of a docstring, and what is returned unless that says it."""
    texts = [section for section in parsed(member) if section.kind in (_KINDS.text, _KINDS.returns)]
    told = texts[0].value.partition("\n\n")[0]
    returned = [each.description for section in texts[1:] if section.kind is _KINDS.returns for each in section.value]
    return " ".join([told, *(f"Returns: {what}" for what in returned)])


def highlighted(text: str) -> str:
    """Text whose indented code is marked as Python."""
    return _CODE.sub(lambda code: f"```python\n{textwrap.dedent(code.group()).rstrip()}\n```\n\n", text).rstrip()


def signature(name: str, member: griffe.Object) -> str:
    """The signature, with a line for each parameter if it is long."""
    parameters = [written(each, member) for each in parameters_of(member)]
    returns = f" -> {member.returns}" if member.is_function and member.returns is not None else ""
    whole = f"{name}({', '.join(parameters)}){returns}"
    if len(whole) <= CODE_WIDTH:
        return whole
    return "\n".join([f"{name}(", *(f"    {each}," for each in parameters), f"){returns}"])


def short(name: str, member: griffe.Object) -> str:
    """The signature without types and defaults."""
    return f"{name}({', '.join(each.name for each in parameters_of(member))})"


def has_constructor(member: griffe.Object) -> bool:
    """Whether a class can be called with arguments of its own."""
    constructor = member.all_members.get("__init__") if member.is_class else None
    return constructor is not None and constructor.is_function


def parameters_of(member: griffe.Object) -> list[griffe.Parameter]:
    """The parameters of a function or constructor, without the object itself."""
    if member.is_attribute or "property" in member.labels:
        return []
    return [each for each in member.parameters if each.name not in ("self", "cls")]


def written(parameter: griffe.Parameter, member: griffe.Object) -> str:
    """A parameter as the source has it, with the value of a private name as its default."""
    stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(parameter.kind, "")
    annotation = "" if parameter.annotation is None else f": {parameter.annotation}"
    default = ""
    if not stars and parameter.default is not None:
        value = str(parameter.default)
        known = member.module.members.get(value) if value.startswith("_") else None
        default = str(known.value) if known is not None and known.is_attribute else value
        default = f" = {default}" if annotation else f"={default}"
    return f"{stars}{parameter.name}{annotation}{default}"


def item(name: str, text: str) -> str:
    """An item of a list: a name and what it means."""
    return filled(f"- `{name}`: {' '.join(text.split())}", "  ")


def filled(text: str, hanging: str) -> str:
    """Text in lines of at most `WIDTH` characters, from the second on indented."""
    return textwrap.fill(text, WIDTH, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False)
