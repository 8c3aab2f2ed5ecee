"""The page: a summary as self-contained HTML, with plots and tables.

Nothing in it executes: Python writes the plots as SVG, and a content security policy forbids the rest. A JavaScript
plotting library would be many times the size of the page, and a mail program or a printer would show none of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from distrun.host.ranks import list_ranks
from distrun.runner.observation.report import plots
from distrun.runner.observation.report.findings import Efficiency, efficiency, finding, training
from distrun.runner.observation.report.style import style_sheet
from distrun.runner.observation.report.summary import ACTIVITIES, RankSummary, Summary
from distrun.runner.observation.report.svg import bits, duration
from distrun.runner.planning.placement import spread

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""The content security policy: browsers fetch nothing and execute nothing."""


def page(summary: Summary) -> str:
    """Return the page of a job."""
    head = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{escape(_clean(f'distrun: {summary.title}'))}</title><style>{style_sheet()}</style></head>\n<body>"
    )
    return head + "\n".join(_clean(part) for part in _parts(summary)) + "</body></html>\n"


def _parts(summary: Summary) -> Iterator[str]:
    ranks = training(summary)
    scale = efficiency(summary)
    yield f"<header>{_heading(summary)}</header><main>"
    yield _verdict(summary)
    yield _key_figures(summary, ranks, scale)
    for note in summary.notes:
        yield f"<p>{escape(note)}</p>"
    if summary.failure_report:
        yield f"<h2>The failure</h2><pre>{escape(summary.failure_report)}</pre>"
    if ranks:
        yield from _plots(summary, ranks)
    if scale is not None:
        yield _scaling(summary, scale)
    yield from _tables(summary)
    yield "</main>"
    if summary.profile is not None:
        text = json.dumps(summary.profile, separators=(",", ":")).replace("<", "\\u003c")
        yield f'<script type="application/json" id="distrun-profile">{text}</script>'


def _heading(summary: Summary) -> str:
    return (
        f"<h1>{escape(summary.title)}</h1>"
        f"<p>{spread(len(summary.ranks), len(summary.hosts))}, started {escape(summary.began)}, ran for "
        f"{duration(summary.seconds)} and {escape(summary.ending)}.</p>"
        f"<p><code>{escape(summary.command)}</code></p>"
    )


def _verdict(summary: Summary) -> str:
    found = finding(summary)
    failed = ' failed"' if summary.status else '"'
    return f'<p class="finding{failed}><strong>{escape(found.sentence)}</strong> {escape(found.advice)}</p>'


def _key_figures(summary: Summary, ranks: Sequence[RankSummary], scale: Efficiency | None) -> str:
    figures = {"duration": duration(summary.seconds)}
    if ranks:
        figures["steps"] = f"{max(rank.steps for rank in ranks):,}"
        figures["median step"] = duration(summary.steps.quantile(0.5))
        if samples := sum(rank.samples / rank.step for rank in ranks):
            figures["samples per second"] = f"{samples:,.0f}" if samples >= 10 else f"{samples:.2g}"
    if scale is not None:
        figures["efficiency"] = f"{scale.share:.0%}"
    if summary.status:
        figures["exit status"] = str(summary.status)
    items = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in figures.items())
    return f'<dl class="key">{items}</dl>'


def _plots(summary: Summary, ranks: Sequence[RankSummary]) -> Iterator[str]:
    shown = ranks
    left_out = ""
    if len(ranks) > plots.MOST_ROWS:
        slowest = sorted(ranks, key=lambda rank: (-rank.held_up, -rank.share("input")))[: plots.MOST_ROWS]
        shown = sorted(slowest, key=lambda rank: rank.rank)
        left_out = f" Shown are {len(shown)} of {len(ranks)} ranks, those that are waited for most."
    yield _figure(
        "Where a step goes",
        plots.where_a_step_goes(shown),
        "Mean seconds of a step by what the rank's main thread does. Waiting for other ranks is the time until the "
        f"last one has come; moving data is the time from then on that the rank cannot do anything else.{left_out}",
    )
    yield _ranks_table(shown)
    if summary.steps.count:
        text = "Time from the end of a step to the end of the next, of all ranks; the axis is logarithmic."
        yield _figure("How long steps take", plots.distribution(summary.steps), text)
    if len(summary.moments) > 1:
        yield _figure("Over the job", plots.over_time(summary.moments), "Steps per second are those of one rank.")
    if any(rank.held_up > 0.01 * rank.step for rank in ranks):
        yield _figure(
            "Whom the others wait for",
            plots.waited_for(ranks),
            "Seconds per step for which the other ranks, on average, stand still until this one has come.",
        )


def _scaling(summary: Summary, scale: Efficiency) -> str:
    said = f"Against one rank, the job scales with an efficiency of {scale.share:.0%}. {scale.explanation}"
    text = f"<p>{escape(said)}</p>"
    scaling = summary.scaling
    if scaling.scales:
        caption = (
            "Predicted from this job's profile, with the same batch per rank; vertical lines are the standard error of "
            f"the prediction. {scaling.said}"
        )
        return _figure("Scaling", plots.scaling(scaling.scales), caption, text)
    return f"<h2>Scaling</h2>{text}<p>{escape(scaling.said)}</p>" if scaling.said else f"<h2>Scaling</h2>{text}"


def _tables(summary: Summary) -> Iterator[str]:
    yield "<h2>Hosts</h2>" + _table(
        ("host", "ranks", "CPU", "memory, most", "received", "sent"),
        (
            (
                host.name,
                list_ranks(sorted(host.ranks)).partition(" ")[2],
                "" if host.cpu is None else f"{host.cpu:.0f} %",
                "" if host.memory is None else f"{host.memory:.0f} %",
                "" if host.received is None else bits(host.received),
                "" if host.sent is None else bits(host.sent),
            )
            for host in summary.hosts
        ),
    )
    if summary.settings:
        yield "<h2>Settings</h2>" + _table(("name", "value"), summary.settings.items())
    if summary.versions:
        yield "<h2>Versions</h2>" + _table(("name", "version"), summary.versions.items())


def _ranks_table(ranks: Sequence[RankSummary]) -> str:
    """Return the plot's figures as a table, for readers who cannot see the plot or want to copy them."""
    used = [name for name in ACTIVITIES if any(rank.seconds.get(name) for rank in ranks)]
    head = ("rank", "host", "steps", "step", *(ACTIVITIES[name] for name in used), "others wait for it")
    rows = (
        (
            str(rank.rank),
            rank.host,
            str(rank.steps),
            duration(rank.step),
            *(duration(rank.seconds.get(name, 0.0)) if rank.seconds.get(name) else "0" for name in used),
            duration(rank.held_up) if rank.held_up else "0",
        )
        for rank in ranks
    )
    return f"<details><summary>The same as figures, per step</summary>{_table(head, rows)}</details>"


def _figure(title: str, plot: str, caption: str, before: str = "") -> str:
    plot = f'<div class="wide">{plot}</div>'
    return f"<h2>{title}</h2>{before}<figure>{plot}<figcaption>{escape(caption)}</figcaption></figure>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    names = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(value)}</td>" for value in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>'


def _clean(text: str) -> str:
    """Return text with control characters, and bytes that are not UTF-8, replaced."""
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return "".join(c if c >= " " or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
