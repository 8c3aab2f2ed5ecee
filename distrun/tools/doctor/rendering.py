"""A report for people: plain text, or tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from distrun.tools.doctor.report import HostCheck, HostReport, LinkReport, Report, Status
from distrun.tools.doctor.verdicts import family, gigabits

_COLOURS = {Status.OK: "green", Status.WARNING: "yellow", Status.FAILED: "bold red", Status.NOT_TRIED: "dim"}
_MAX_COLUMNS = 12  # hosts in a matrix: the links between more are listed


def plain(report: Report) -> str:
    """Return the report as lines of text, for files and pipes."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    for host in report.hosts:
        yield f"host {_title(host)}"
        for step in host.steps:
            yield from _entry(step.status, step.name, _words(step))
    if report.links:
        yield "network"
        width = max(len(_arrow(link)) for link in report.links)
        for link in report.links:
            yield from _entry(link.status, _arrow(link), _words(link), width)
    for note in report.notes:
        yield f"note: {note}"
    yield report.summary


def _entry(status: Status, name: str, words: list[str], width: int = 10) -> Iterator[str]:
    head = f"  {status.value:9}  {name:{width}}  "
    for number, line in enumerate(words or [""]):
        yield f"{head if not number else ' ' * len(head)}{line}".rstrip()


def _words(item: HostCheck | LinkReport) -> list[str]:
    """Return the lines about a step or a link."""
    words = item.text.splitlines()
    if isinstance(item, LinkReport) and item.source_address and item.target_address and item.bandwidth is not None:
        place = f"{item.source_address} -> {item.target_address} ({family(item.target_address)})"
        words = [f"{place}: {words[0]}", *words[1:]]
    if item.command:
        words.append(f"by hand: {item.command}")
    if item.remedy:
        words.append(f"remedy: {item.remedy}")
    return words


def _title(host: HostReport) -> str:
    return f"{host.host} (this machine)" if host.local else host.host


def _arrow(link: LinkReport) -> str:
    return f"{link.source} -> {link.target}"


def on_terminal(report: Report, console: Console) -> None:
    """Print the report as tables."""
    console.print(_steps(report))
    if report.links and len(report.hosts) <= _MAX_COLUMNS:
        console.print(_matrix(report))
        if troubles := [link for link in report.links if link.status is not Status.OK]:
            console.print(_list(troubles))
    elif report.links:
        console.print(_list(report.links))
    for note in report.notes:
        console.print(Text(f"note: {note}", style=_COLOURS[Status.WARNING]))
    console.print(Text(report.summary, style=_COLOURS[Status.OK if report.ok else Status.FAILED]))


def _steps(report: Report) -> RenderableType:
    table = Table("host", "step", "", "found", box=box.SIMPLE_HEAD)
    for host in report.hosts:
        for number, step in enumerate(host.steps):
            table.add_row(
                Text(_title(host) if not number else "", style="bold"),
                step.name,
                Text(step.status.value, style=_COLOURS[step.status]),
                Text("\n".join(_words(step))),
                end_section=number == len(host.steps) - 1,
            )
    return table


def _matrix(report: Report) -> RenderableType:
    """Return a table of Gbit/s and round trips. Rows send, and columns receive."""
    hosts = list(dict.fromkeys(name for link in report.links for name in (link.source, link.target)))
    links = {(link.source, link.target): link for link in report.links}
    headings = [host.replace("[", "\\[") for host in hosts]  # or rich would read a style
    table = Table("from \\ to, Gbit/s (round trip, us)", *headings, box=box.SIMPLE_HEAD)
    for source in hosts:
        cells = [links.get((source, target)) for target in hosts]
        texts = [Text("") if link is None else Text(_cell(link), style=_COLOURS[link.status]) for link in cells]
        table.add_row(Text(source, style="bold"), *texts)
    return table


def _cell(link: LinkReport) -> str:
    if link.bandwidth is None:
        return "failed"
    round_trip = "" if link.round_trip is None else f" ({link.round_trip * 1e6:.0f})"
    return gigabits(link.bandwidth) + round_trip


def _list(links: tuple[LinkReport, ...] | list[LinkReport]) -> RenderableType:
    table = Table("link", "", "found", box=box.SIMPLE_HEAD)
    for link in links:
        status = Text(link.status.value, style=_COLOURS[link.status])
        table.add_row(Text(_arrow(link)), status, Text("\n".join(_words(link))))
    return table
