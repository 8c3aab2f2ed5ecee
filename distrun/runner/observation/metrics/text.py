"""The page of metrics, in Prometheus's text format: https://prometheus.io/docs/instrumenting/exposition_formats/"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

Labels = Mapping[str, str]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Page:
    """A page of metrics, in the order of their addition."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, name: str, kind: str, meaning: str, values: Iterator[tuple[Labels, float]]) -> None:
        """Add a metric.

        Args:
            name: the name, which begins with `distrun_` and ends with its unit.
            kind: counter or gauge.
            meaning: the help text, without a full stop.
            values: the values with their labels. A metric without values is left out.
        """
        lines = [f"{name}{_labels(labels)} {value!r}" for labels, value in values]
        if lines:
            self._lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", *lines]

    def render(self) -> bytes:
        """Return the page."""
        return "".join(f"{line}\n" for line in self._lines).encode(errors="replace")


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
