"""The consumer that keeps the page of metrics up to date: it writes a new page each second.

The page is in Prometheus's text format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from distrun import __version__
from distrun.runner.observation.consumer import Consumer, JobEnd, Source
from distrun.runner.observation.metrics.server import Server
from distrun.runner.observation.model.accounts import SECOND
from distrun.runner.observation.model.model import Model, Rank
from distrun.runner.planning.plan import LaunchPlan
from distrun.tracing.layout import KIND_NAMES
from distrun.tracing.reader import Event

_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})

Values = Iterable[tuple[Mapping[str, str], float]]


class Metrics(Consumer):
    """Exports the current state of a job to Prometheus."""

    title = "the metrics"

    def __init__(self, server: Server, plan: LaunchPlan, say: Callable[[str], None]) -> None:
        """Args: `server` serves the page, and is closed at the end of the job. `say` prints a line for the user."""
        self._server = server
        self._plan = plan
        self._model = Model()
        self._due = 0
        self._server.page = self._page()
        say(f"metrics are at http://{server.address}/metrics")

    def events(self, source: Source, events: Sequence[Event], names: Sequence[str]) -> None:
        self._model.events(source, events, names)

    def sample(self, host: str, sample: Mapping[str, Any]) -> None:
        self._model.sample(host, sample)

    def tick(self, now: int) -> None:
        """Write a new page, if it is due."""
        self._model.tick(now)
        if now >= self._due:
            self._due = now + SECOND
            self._server.page = self._page()

    def close(self, ending: JobEnd) -> None:
        self._server.close()

    def _page(self) -> bytes:
        hosts = self._model.hosts.items()
        stragglers = [({"rank": str(one.rank), "host": one.host}, one.share) for one in self._model.stragglers]
        job = {"job": self._plan.job, "version": __version__}
        lines = [
            *metric("distrun_info", "gauge", "The job", [(job, 1)]),
            *metric("distrun_ranks", "gauge", "Ranks that were started", [({}, self._plan.size)]),
        ]
        for name, meaning, value in _COUNTERS:
            lines += metric(name, "counter", meaning, self._of_ranks(value))
        times = "What the main thread of a rank did, or waited for"
        lines += metric("distrun_seconds_total", "counter", times, self._times())
        for name, meaning, value in _GAUGES:
            lines += metric(name, "gauge", meaning, self._of_ranks(value))
        share = "Share of the time that a rank costs the others at present; of stragglers only"
        lines += metric("distrun_straggler_ratio", "gauge", share, stragglers)
        for name, meaning, attribute, unit in _HOSTS:
            values = [({"host": host}, getattr(of, attribute) * unit) for host, of in hosts]
            lines += metric(name, "gauge", meaning, values)
        return "".join(f"{line}\n" for line in lines).encode(errors="replace")

    def _of_ranks(self, value: Callable[[Rank], float | None]) -> Values:
        for number, rank in self._model.ranks.items():
            found = value(rank)
            if found is not None and rank.host:
                yield {"rank": str(number), "host": rank.host}, found

    def _times(self) -> Values:
        for number, rank in self._model.ranks.items():
            labels = {"rank": str(number), "host": rank.host}
            for state, seconds in rank.whole.states.items():
                yield {**labels, "activity": KIND_NAMES[state]}, seconds
            yield {**labels, "activity": "waiting"}, sum(rank.whole.waiting.values())
            yield {**labels, "activity": "moving"}, rank.whole.moving


def metric(name: str, kind: str, meaning: str, values: Values) -> list[str]:
    """Return the lines of a metric, or none without values.

    Args:
        name: the name, which begins with `distrun_` and ends with its unit.
        kind: counter or gauge.
        meaning: the help text, without a full stop.
        values: the values with their labels.
    """
    lines = []
    for labels, value in values:
        pairs = ",".join(f'{label}="{text.translate(_ESCAPED)}"' for label, text in labels.items())
        lines.append(f"{name}{{{pairs}}} {value!r}" if pairs else f"{name} {value!r}")
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", *lines] if lines else []


_COUNTERS: tuple[tuple[str, str, Callable[[Rank], float | None]], ...] = (
    ("distrun_steps_total", "Steps of the training that a rank has done", lambda rank: rank.whole.steps),
    ("distrun_samples_total", "Samples that a rank has begun", lambda rank: rank.whole.samples),
    ("distrun_cost_seconds_total", "Time that a rank has cost the others by being late", lambda rank: rank.whole.cost),
)
_GAUGES: tuple[tuple[str, str, Callable[[Rank], float | None]], ...] = (
    ("distrun_rank_cpu_cores", "Cores that a rank uses", lambda rank: None if rank.cpu is None else rank.cpu / 100),
    ("distrun_rank_memory_bytes", "Memory that a rank uses", lambda rank: rank.memory),
)
_HOSTS = (
    ("distrun_host_cpu_ratio", "Share of a host's cores that is used, by all processes", "cpu", 0.01),
    ("distrun_host_memory_ratio", "Share of a host's memory that is used, by all processes", "memory", 0.01),
    (
        "distrun_host_received_bytes_per_second",
        "Traffic over a host's busiest interface, inwards",
        "received_lately",
        1.0,
    ),
    ("distrun_host_sent_bytes_per_second", "Traffic over a host's busiest interface, outwards", "sent_lately", 1.0),
)
