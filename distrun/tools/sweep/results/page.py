"""The page of a sweep: HTML that needs nothing else, with plots, all trials, and the failures with their stories."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from distrun.runner.observation.report.style import style_sheet
from distrun.runner.observation.report.svg import duration
from distrun.tools.sweep.policy.trials import State, Trial
from distrun.tools.sweep.results import plots
from distrun.tools.sweep.results.importance import importances
from distrun.tools.sweep.results.sentences import counts, parameters, run_line
from distrun.tools.sweep.results.standing import best, groups, ranked
from distrun.tools.sweep.space.command_line import SEED, Template
from distrun.tools.sweep.space.ranges import shown

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""For browsers: nothing is fetched, and nothing is executed."""
_MOST_ROWS = 2000


def page(trials: Sequence[Trial], template: Template, ranks: int, minimizes: bool) -> str:
    """Return the page.

    Args:
        trials: all trials.
        template: the command with its parameters.
        ranks: the number of ranks of each trial.
        minimizes: whether small values are good.
    """
    name = shlex.join([*template.words, *template.fixed])
    head = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{escape(_clean(f'distrun sweep: {name}'))}</title><style>{style_sheet()}{plots.STYLE}</style></head>"
    )
    body = "\n".join(map(_clean, _parts(trials, template, ranks, minimizes, name)))
    return f"{head}\n<body>{body}</body></html>\n"


def _parts(trials: Sequence[Trial], template: Template, ranks: int, minimizes: bool, name: str) -> Iterator[str]:
    ranges = ", ".join(f"{parameter} in {values}" for parameter, values in template.parameters.items())
    yield f"<header><h1>{escape(name)}</h1><p>{escape(counts(trials))}. {escape(ranges)}</p></header><main>"
    yield _best(best(trials, minimizes), template, ranks)
    if any(trial.result.is_finite for trial in trials):
        yield from _plots(trials, template, minimizes)
    if SEED in template.parameters:
        yield _seeds(trials, minimizes)
    yield from _failures(trials)
    yield _trials(ranked(trials, minimizes), template)
    yield "</main>"


def _best(first: Trial | None, template: Template, ranks: int) -> str:
    if first is None:
        return '<p class="finding failed"><strong>No trial has come to its end with a value.</strong></p>'
    at = "" if first.step is None else f" at step {first.step:g}"
    said = f"The best is trial {first.number} with {first.value:.6g}{at}: {parameters(first.values)}"
    command = run_line(template.command(first.values), ranks)
    return f'<p class="finding"><strong>{escape(said)}</strong></p><pre>{escape(command)}</pre>'


def _plots(trials: Sequence[Trial], template: Template, minimizes: bool) -> Iterator[str]:
    text = "The last value of each trial; the line is the best so far. Pruned trials are in another colour."
    yield _figure("How the best came about", plots.history(trials, minimizes), text)
    if not template.parameters:
        return
    text = "A line for each trial. The better tenth is coloured, and the best is thick."
    plot = plots.parallel_coordinates(trials, template.parameters, minimizes)
    yield _figure("Parallel coordinates", plot, text)
    shares = importances([trial.result for trial in trials if trial.state is State.COMPLETE], dict(template.parameters))
    if shares:
        text = (
            "The share of the variance of the complete trials' ranks that each parameter explains by itself (epsilon "
            "squared over choices, or quarters of a range); it does not see parameters that matter together only."
        )
        yield _figure("Importance", plots.importance(shares), text)


def _seeds(trials: Sequence[Trial], minimizes: bool) -> str:
    rows = (
        (
            parameters(group.values),
            "" if group.mean is None else f"{group.mean:.6g}",
            "" if group.deviation is None else f"{group.deviation:.3g}",
            str(len(group.complete)),
        )
        for group in groups(trials, minimizes)
    )
    return "<h2>Over the seeds</h2>" + _table(("parameters", "mean", "standard deviation", "seeds"), rows)


def _failures(trials: Iterable[Trial]) -> Iterator[str]:
    failed = [trial for trial in trials if trial.state is State.FAILED]
    if failed:
        yield "<h2>Failures</h2>"
    for trial in failed:
        title = f"trial {trial.number} ({parameters(trial.values)})"
        yield f"<details><summary>{escape(title)}</summary><pre>{escape(trial.failure_text)}</pre></details>"


def _trials(trials: Sequence[Trial], template: Template) -> str:
    names = list(template.parameters)
    rows = (
        (
            str(trial.number),
            trial.state.value,
            "" if trial.value is None else f"{trial.value:.6g}",
            "" if trial.step is None else f"{trial.step:g}",
            *(shown(trial.values.get(name, "")) for name in names),
            duration(trial.seconds) if trial.seconds else "",
            ", ".join(trial.hosts),
        )
        for trial in trials[:_MOST_ROWS]
    )
    left_out = f"<p>The best {_MOST_ROWS} of {len(trials)} trials.</p>" if len(trials) > _MOST_ROWS else ""
    head = ("trial", "state", "value", "step", *names, "time", "hosts")
    return f"<h2>All trials</h2>{left_out}" + _table(head, rows)


def _figure(title: str, plot: str, caption: str) -> str:
    return f"<h2>{title}</h2><figure>{plot}<figcaption>{escape(caption)}</figcaption></figure>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    names = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(value)}</td>" for value in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>'


def _clean(text: str) -> str:
    """Return text that a page can hold: bytes that are no UTF-8, and control characters, are replaced."""
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return "".join(c if c >= " " or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
