"""Disagreements: the sentence about an operation that ranks have submitted with different requests."""

from __future__ import annotations

from collections.abc import Callable

from distrun.host.ranks import list_ranks
from distrun.runtime.negotiation.matching.matching import Slot
from distrun.runtime.operations.request import (
    ADD_PROCESS_SET,
    AGREED,
    FORM_PROCESS_SET,
    REMOVE_PROCESS_SET,
    Request,
    describe_field,
    first_difference,
    title,
)


def slot_title(slot: Slot) -> str:
    """Return an operation's name in messages."""
    process_set, place = slot.key
    text = title(slot.request.kind, slot.request.name, place if isinstance(place, int) else None)
    return f"{text} of process set {process_set}" if process_set else text


def sides_of(slot: Slot) -> dict[str, list[int]]:
    """Return the ranks on each side of a disagreement, by a text of the side's fields that differ."""
    fields, place = _differences(slot)
    sides: dict[str, list[int]] = {}
    for rank in sorted(slot.present):
        request = slot.request_of(rank)
        if place is not None:  # show only the tensor that differs, as the group may be large
            request = request._replace(shapes=(request.shapes[place],))
        values = ", ".join(f"{_label(request, name)} {describe_field(request, name)}" for name in fields)
        sides.setdefault(values, []).append(rank)
    return sides


def describe_disagreement(slot: Slot, site_of: Callable[[int], str]) -> str:
    """Return the sentence. `site_of` returns a rank's call site in user code, or "" if it is not known."""
    fields, place = _differences(slot)
    sides = [
        f"{list_ranks(ranks)} asked for {values}{_at(site_of(ranks[0]))}" for values, ranks in sides_of(slot).items()
    ]
    which = f" (of tensor {place} of {len(slot.request.shapes)})" if place is not None else ""
    labels = ", ".join(_label(slot.request, name) for name in fields)
    return f"{slot_title(slot)}: the ranks disagree about {labels}{which}: {'; '.join(sides)}"


def _differences(slot: Slot) -> tuple[list[str], int | None]:
    """Return the fields that differ and, in a group, the first tensor whose shape does."""
    asked = [slot.request, *slot.disagreement.values()]
    fields = [name for name in AGREED if len({getattr(request, name) for request in asked}) > 1]
    place = first_difference(asked)
    return fields, place if len(slot.request.shapes) > 1 else None


def _label(request: Request, field: str) -> str:
    """Return the name of a field for people."""
    if field == "shapes" and request.kind in (ADD_PROCESS_SET, FORM_PROCESS_SET):
        return "ranks"
    return "process_set_id" if field == "shapes" and request.kind == REMOVE_PROCESS_SET else field


def _at(site: str) -> str:
    return f" at {site}" if site else ""
