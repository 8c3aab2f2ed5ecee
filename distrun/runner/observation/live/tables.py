"""The lines of the live view for a terminal of a given size, rendered by rich. Pure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from io import StringIO

from rich.console import Console, Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from distrun.host.ranks import count
from distrun.runner.observation.live.sentences import (
    clock,
    from_script,
    mean_shares,
    number,
    rates,
    silent,
    size,
)
from distrun.runner.observation.live.snapshot import RankView, Snapshot, TimeShares

_COLOURS = {
    "compute": "green",
    "input": "yellow",
    "waiting": "red",
    "moving": "blue",
    "optimizer": "cyan",
    "other": "bright_black",
}
_COMPACT = 100
"""Below this number of columns, a row has no host, no samples per second, no usage and a shorter bar, to leave room for
the last line of output.
"""
_MOST_PART = 0.6
"""The share of a terminal's height that the view may take from the scrolling output above it."""


def lines(snapshot: Snapshot, columns: int, rows: int, prompt: str = "", is_all: bool = False) -> list[str]:
    """Return the lines, with colours as escape sequences.

    Args:
        snapshot: the state of the job.
        columns, rows: the size of the terminal.
        prompt: the last line. Empty = an overview of the keys.
        is_all: whether the view may use all rows, instead of `_MOST_PART` of them.
    """
    console = Console(
        file=StringIO(),
        force_terminal=True,
        width=max(20, columns),
        color_system=None if os.environ.get("NO_COLOR") else "standard",
        legacy_windows=False,
        highlight=False,
    )
    slow = [("slow: " if one.stands else "slow now: ") + one.sentence for one in snapshot.slow[:3]]
    notes = [line for text in slow for line in Text(text, style="bold red").wrap(console, console.width)]
    left = rows - 5 - bool(silent(snapshot))  # for ranks or hosts, and notes
    # A note that wraps takes rows from the output above, not from the ranks, as the table would change with each.
    room = max(2, min(left - len(notes), left if is_all else int(rows * _MOST_PART) - rows + left - len(slow)))
    parts: list[RenderableType] = [Rule(_title(snapshot, columns), style="dim", align="left")]
    parts += notes[: max(1, left - room)]
    if quiet := silent(snapshot):
        parts.append(Text(quiet, style="yellow", no_wrap=True, overflow="ellipsis"))
    by_rank = len(snapshot.ranks) <= room
    parts.append(_ranks(snapshot.ranks, columns) if by_rank else _hosts(snapshot, columns, room))
    parts.append(_machine(snapshot))
    parts.append(Text(prompt or _keys(snapshot), style="dim", no_wrap=True, overflow="ellipsis"))
    with console.capture() as capture:
        console.print(Group(*parts))
    return capture.get().rstrip("\n").split("\n")


def _title(snapshot: Snapshot, columns: int) -> Text:
    words = from_script(snapshot.command.split()) or [snapshot.job]
    title = Text(f"{words[0][:40]} ", style="bold", no_wrap=True)
    short = [*rates(snapshot), clock(snapshot.seconds)]
    hosts = {rank.host for rank in snapshot.ranks}
    whole = [short[0], *([count(len(hosts), "host")] if hosts else []), *short[1:], f"job {snapshot.job[:8]}"]
    forms = [" · ".join(parts) for parts in (whole, whole[:-1], short)]
    return title.append(next((form for form in forms if len(title) + len(form) < columns), forms[-1]), style="not bold")


def _keys(snapshot: Snapshot) -> str:
    bars = f"   {count(snapshot.bars, 'more progress bar')}" if snapshot.bars else ""
    return f"s stack  l log  q close the view, the job goes on{bars}"


def _machine(snapshot: Snapshot) -> Text:
    parts = [
        f"{host.host}: nothing heard any more"
        if host.is_silent
        else f"{host.host}: CPU {host.cpu:.0f} %, memory {host.memory:.0f} %, "
        f"network in {size(host.received)}/s out {size(host.sent)}/s"
        for host in snapshot.hosts
    ]
    return Text("   ".join(parts), no_wrap=True, overflow="ellipsis", style="dim")


def _table(first: str, is_compact: bool) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), expand=True, header_style="dim", pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in ("steps/s",) if is_compact else ("steps/s", "samples/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("time", no_wrap=True, width=_bar_width(is_compact))
    waiting = "waits for" if is_compact else "waiting for"
    for name, title in {"compute": "compute", "input": "input", "waiting": waiting, "moving": "moving"}.items():
        table.add_column(title, justify="right", no_wrap=True, style=_COLOURS[name])
    for name in () if is_compact else ("CPU", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _ranks(ranks: Sequence[RankView], columns: int) -> Table:
    is_compact = columns < _COMPACT
    table = _table("rank", is_compact)
    has_gpus = any(rank.gpu is not None for rank in ranks)
    if has_gpus:
        table.add_column("GPU", justify="right", no_wrap=True)
    table.add_column("last line", no_wrap=True, overflow="ellipsis", ratio=1)
    for rank in ranks:
        gpu = [] if not has_gpus else ["" if rank.gpu is None else f"{rank.gpu:.0f} % {size(rank.gpu_memory or 0)}"]
        cells = _cells(is_compact, rank.steps_per_second, rank.samples_per_second, rank.shares, rank.waits_for)
        table.add_row(
            str(rank.rank) if is_compact else f"{rank.rank} {rank.host}",
            *cells,
            *([] if is_compact else _usage(rank.cpu, rank.memory)),
            *gpu,
            _last(rank),
        )
    return table


def _last(rank: RankView) -> RenderableType:
    """Return the last cell of a rank: the last line of its output, behind an activity that has lasted for long."""
    note = "gone" if rank.is_gone else f"{rank.doing_for:.0f} s {rank.doing}" if rank.doing else ""
    if not note or not rank.line:
        return Text(note or rank.line, style="yellow" if note else "dim")
    halves = Table.grid(padding=(0, 1, 0, 0), expand=True)
    for style in ("yellow", "dim"):
        halves.add_column(no_wrap=True, overflow="ellipsis", ratio=1, style=style)
    halves.add_row(Text(note), Text(rank.line))
    return halves


def _hosts(snapshot: Snapshot, columns: int, room: int) -> Table:
    """Return a table with a line per host, for jobs with too many ranks for a line each."""
    is_compact = columns < _COMPACT
    table = _table("host", is_compact)
    table.add_column("ranks", no_wrap=True, overflow="ellipsis", ratio=1)
    by_host: dict[str, list[RankView]] = {}
    for rank in snapshot.ranks:
        by_host.setdefault(rank.host, []).append(rank)
    shown = list(by_host.items())[: room - 1 if len(by_host) > room else room]
    for name, ranks in shown:
        part = Snapshot("", "", len(ranks), 0.0, ranks=ranks)
        waits = [rank.waits_for for rank in ranks if rank.waits_for is not None]
        most = max(set(waits), key=waits.count) if waits else None
        cpu, memory = (sum(getattr(rank, name) or 0 for rank in ranks) for name in ("cpu", "memory"))
        table.add_row(
            name,
            *_cells(is_compact, part.steps_per_second, part.samples_per_second, mean_shares(part), most),
            *([] if is_compact else _usage(cpu, memory)),
            _strip(ranks),
        )
    if len(shown) < len(by_host):
        table.add_row(f"and {len(by_host) - len(shown)} more")
    return table


def _cells(
    is_compact: bool, steps: float | None, samples: float | None, shares: TimeShares | None, waits_for: int | None
) -> list[Text | str]:
    rates = (steps,) if is_compact else (steps, samples)
    cells: list[Text | str] = ["" if rate is None else number(rate) for rate in rates]
    if shares is None:
        return [*cells, "", "", "", "", ""]
    waits = _percent(shares.waiting) + ("" if waits_for is None else f" {waits_for:>2}")
    bar = _bar(shares, _bar_width(is_compact))
    return [*cells, bar, _percent(shares.compute), _percent(shares.input), waits, _percent(shares.moving)]


def _usage(cpu: float | None, memory: int | None) -> list[str]:
    return ["" if cpu is None else f"{cpu:.0f} %", "" if memory is None else size(memory)]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _bar_width(is_compact: bool) -> int:
    return 8 if is_compact else 16


def _bar(shares: TimeShares, width: int) -> Text:
    """Return a bar of the parts of the time. Each part has its letter, so that it is readable without colours."""
    text = Text()
    filled, done = 0, 0.0
    for name, share in vars(shares).items():
        done += share
        upto = min(width, round(width * done))
        text.append(("█" if name == "compute" else name[0]) * (upto - filled), style=_COLOURS[name])
        filled = upto
    return text


def _strip(ranks: Sequence[RankView]) -> Text:
    """Return a character per rank, for the activity that takes most of its time."""
    text = Text(f"{ranks[0].rank} ", no_wrap=True, overflow="ellipsis")
    for rank in ranks:
        most = "other" if rank.shares is None else max(vars(rank.shares), key=lambda name: vars(rank.shares)[name])
        text.append("█" if most == "compute" else most[0], style=_COLOURS[most])
    return text
