"""Hosts: distrun between two hosts, over links of different speeds, beside comparable systems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.hosts import launch, namespaces, ranks as remote_ranks
from benchmarks.hosts.allreduce import BOUND, ONE_WAY, SIZES
from benchmarks.hosts.namespaces import Link
from benchmarks.hosts.ranks import DISTRUN
from benchmarks.support import processes, ranks
from benchmarks.support.comparison import Comparison
from benchmarks.support.measuring import Summary

LINKS = (
    Link("veth"),
    Link("10 Gbit/s", 10e9),
    Link("1 Gbit/s", 1e9),
    Link("10 Gbit/s, MTU 9000", 10e9, 9000),
    Link("1 Gbit/s, MTU 9000", 1e9, 9000),
)
DEADLINE = 300.0
PLAIN, ENCRYPTED = "distrun", "distrun --encrypt"


def compare(quick: bool, environ: Mapping[str, str], work: Path) -> Iterator[Comparison]:
    """Yield the tables of traffic, times over all links, encryption, compression, outer steps, quality and launch, each
    as soon as it is measured.

    Raises:
        processes.ProcessError: there can be no hosts here, or a program failed.
    """
    if (reason := namespaces.missing()) is not None:
        raise processes.ProcessError(reason)
    yield _traffic(environ, work)
    yield _times(quick, environ, work)
    yield _encryption(quick, environ, work)
    yield _compression(quick, environ, work)
    yield _outer_steps(quick, environ, work)
    yield _on_ranks("benchmarks.hosts.quality", LINKS[0], 1, quick, environ, work / "quality", 1500.0)
    yield _launch(quick, environ, work)


def torch_backend(quick: bool, environ: Mapping[str, str], work: Path, deadline: float) -> Comparison:
    """Compare the backend of torch.distributed with gloo between two hosts, over a link that has no limit but the
    memory, within so many seconds. Raises as `compare` does."""
    return _on_ranks(
        "benchmarks.frameworks.torch_backend", LINKS[0], 1, quick, environ, work / "torch-backend", deadline
    )


def _times(quick: bool, environ: Mapping[str, str], work: Path) -> Comparison:
    whole: Comparison | None = None
    for number, link in enumerate(LINKS):
        found = _on_ranks("benchmarks.hosts.allreduce", link, 1, quick, environ, work / f"link-{number}")
        rows, found.rows = found.rows, {}
        whole = whole or found
        for size, results in rows.items():
            whole.add(f"{link.label}: {size}", {**results, **_bound(link, size)})
        whole.notes.append(f"{link.label}: {_speed(rows)}.")
    assert whole is not None
    return whole


def _bound(link: Link, size: str) -> dict[str, Summary]:
    """Return the shortest possible time: of two ranks, each sends all bytes, and each direction has the whole rate."""
    if link.rate is None:
        return {}
    seconds = SIZES[size][0] * 8 / link.rate
    return {BOUND: Summary(seconds, (seconds, seconds), 1)}


def _speed(rows: Mapping[str, Mapping[str, Summary]]) -> str:
    """Measure the real speed of the link."""
    size = list(rows)[-1]
    rate = SIZES[size][0] * 8 / rows[size][ONE_WAY].median
    return f"a plain stream of {size} one way passes {rate / 1e9:.3g} Gbit/s"


def _traffic(environ: Mapping[str, str], work: Path) -> Comparison:
    one, two = (
        _on_ranks("benchmarks.hosts.traffic", LINKS[0], count, False, environ, work / f"{count}") for count in (1, 2)
    )
    for task, results in two.rows.items():
        one.add(task, results)
    return one


def _encryption(quick: bool, environ: Mapping[str, str], work: Path) -> Comparison:
    """Compare allreduces with and without encryption, in two runs, over a link that has no limit but the memory."""
    runs = {
        name: _on_ranks(
            "benchmarks.hosts.allreduce", LINKS[0], 1, quick, {**environ, "DISTRUN_ENCRYPT": on}, work / f"tls-{on}"
        )
        for name, on in ((PLAIN, "0"), (ENCRYPTED, "1"))
    }
    comparison = Comparison(
        "allreduce in place, sum, float32, 2 hosts, one rank each, with --encrypt",
        "size",
        [PLAIN, ENCRYPTED],
        [(ENCRYPTED, PLAIN)],
        notes=["TLS 1.3 with AES-256-GCM; each rank encrypts and decrypts on the core that it runs on."],
    )
    for size in runs[PLAIN].rows:
        comparison.add(size, {name: found.rows[size][DISTRUN] for name, found in runs.items()})
    return comparison


def _compression(quick: bool, environ: Mapping[str, str], work: Path) -> Comparison:
    """Compare what gradients cost in each form over a slow link."""
    return _over_slow_link("benchmarks.hosts.wire", quick, environ, work / "wire", DEADLINE)


def _outer_steps(quick: bool, environ: Mapping[str, str], work: Path) -> Comparison:
    """Compare steps between which hosts exchange gradients, or now and then what they have learned."""
    return _over_slow_link("benchmarks.hosts.outer_steps", quick, environ, work / "outer-steps", 3000.0)


def _over_slow_link(program: str, quick: bool, environ: Mapping[str, str], work: Path, deadline: float) -> Comparison:
    link = LINKS[2]
    found = _on_ranks(program, link, 1, quick, environ, work, deadline)
    found.title += f", {link.label}"
    return found


def _launch(quick: bool, environ: Mapping[str, str], work: Path) -> Comparison:
    with namespaces.hosts(work / "launch", LINKS[0]) as hosts:
        return launch.compare(hosts, quick, environ)


def _on_ranks(
    program: str,
    link: Link,
    per_host: int,
    quick: bool,
    environ: Mapping[str, str],
    work: Path,
    deadline: float = DEADLINE,
) -> Comparison:
    """Run a program on hosts made for it; return its result."""
    with namespaces.hosts(work, link) as hosts:
        launcher, theirs = remote_ranks.launcher(hosts, per_host), remote_ranks.environ(hosts, environ)
        return ranks.launch(launcher, program, quick, theirs, work, deadline)
