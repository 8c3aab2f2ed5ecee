"""A small canvas for plots: shapes and text as SVG within HTML, with a title and a description for screen readers."""

from __future__ import annotations

import math
from html import escape

WIDTH = 860.0


class Canvas:
    """The shapes of one plot. Colours and fonts come from the style sheet, by class."""

    def __init__(self, name: str, title: str, description: str, height: float) -> None:
        """
        Args:
            name: the id of the plot, unique in the page.
            title: the subject, in a few words.
            description: the message, in a sentence or two.
            height: the height, in units of a width of `WIDTH`.
        """
        self._name, self._title, self._description, self._height = name, title, description, height
        self._shapes: list[str] = []

    def rectangle(self, x: float, y: float, width: float, height: float, looks: str, hint: str = "") -> None:
        """Draw a rectangle with the tooltip `hint`."""
        title = f"<title>{escape(hint)}</title>" if hint else ""
        self._shapes.append(
            f'<rect class="{looks}" x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" '
            f'height="{max(0.0, height):.1f}">{title}</rect>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, looks: str) -> None:
        """Draw a line."""
        self._shapes.append(f'<line class="{looks}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    def curve(self, points: list[tuple[float, float]], looks: str) -> None:
        """Draw a polyline through points."""
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._shapes.append(f'<polyline class="{looks}" points="{places}"/>')

    def dot(self, x: float, y: float, looks: str, hint: str) -> None:
        """Draw a dot with the tooltip `hint`."""
        title = f"<title>{escape(hint)}</title>"
        self._shapes.append(f'<circle class="{looks}" cx="{x:.1f}" cy="{y:.1f}" r="5">{title}</circle>')

    def text(self, x: float, y: float, text: str, looks: str = "", anchor: str = "start") -> None:
        """Write a line of text. `anchor` is start, middle or end."""
        css = f' class="{looks}"' if looks else ""
        self._shapes.append(f'<text{css} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>')

    def render(self) -> str:
        """Return the plot as SVG."""
        return (
            f'<svg role="img" aria-labelledby="{self._name}-title {self._name}-desc" '
            f'viewBox="0 0 {WIDTH:g} {self._height:g}" xmlns="http://www.w3.org/2000/svg">'
            f'<title id="{self._name}-title">{escape(self._title)}</title>'
            f'<desc id="{self._name}-desc">{escape(self._description)}</desc>' + "".join(self._shapes) + "</svg>"
        )


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round values from `low` to `high`, at most about `most`."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return round values from `low` to `high` for a logarithmic axis."""
    if high < 5 * low:
        return ticks(low, high)
    factors = (1, 2, 5) if high < 1000 * low else (1,)
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [factor * 10.0**exponent for exponent in exponents for factor in factors]
    return [value for value in values if low <= value <= high]


def duration(seconds: float) -> str:
    """Return a duration as text: `12.3 ms`, `4.56 s`, `3 min 20 s`, `2 d 3 h`."""
    if seconds < 1e-3:
        return f"{_three(seconds * 1e6)} µs"
    if seconds < 1:
        return f"{_three(seconds * 1e3)} ms"
    if seconds < 100:
        return f"{_three(seconds)} s"
    whole = round(seconds)
    for length, name, rest, rest_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= length:
            return f"{whole // length} {name} {whole % length // rest} {rest_name}"
    raise AssertionError


def bits(bytes_per_second: float) -> str:
    """Return a rate in bits, as usual for networks: `940 Mbit/s`."""
    value = 8 * bytes_per_second
    units = {"Gbit/s": 1e9, "Mbit/s": 1e6, "kbit/s": 1e3, "bit/s": 1}
    name = next((name for name, unit in units.items() if value >= unit), "bit/s")
    return f"{_three(value / units[name])} {name}"


def _three(value: float) -> str:
    """Return a number with three significant digits, without trailing zeros."""
    places = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
