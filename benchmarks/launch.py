"""Launch: the time to start processes that do nothing, and to see them end."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.support import launchers, processes
from benchmarks.support.comparison import Comparison
from benchmarks.support.measuring import summary

DEADLINE = 60.0
ROUNDS = 7
DISTRUN, DISTRUN_32, TORCHRUN, MPIRUN = "distrun -np 2", "distrun -np 32", "torchrun (2)", "mpirun -np 2"


def compare(quick: bool, environ: Mapping[str, str]) -> Comparison:
    """Compare all launchers; one that is missing or fails is left out, with the reason."""
    comparison = Comparison(
        "launch, wall seconds of `LAUNCHER true`",
        "command",
        [DISTRUN, DISTRUN_32, TORCHRUN, MPIRUN],
        [(TORCHRUN, DISTRUN), (MPIRUN, DISTRUN)],
        notes=[f"{TORCHRUN}: torchrun --nproc-per-node 2 --no-python true."],
    )
    measure(comparison, _commands(), quick, environ)
    return comparison


def measure(
    comparison: Comparison,
    commands: Mapping[str, Callable[[], tuple[list[str], int]]],
    quick: bool,
    environ: Mapping[str, str],
) -> None:
    """Add the row of measurements.

    Each of `commands` returns a launcher's command line, up to the command to start, and the number of processes
    that it starts.
    """
    prefixes: dict[str, list[str]] = {}
    for name, command in commands.items():
        try:
            launcher, count = command()
            _check(launcher, count, environ)
            prefixes[name] = [*launcher, "true"]
        except processes.ProcessError as error:
            comparison.notes.append(f"{name} is missing: {error}")
    seconds: dict[str, list[float]] = {name: [] for name in prefixes}
    for _ in range(5 if quick else ROUNDS):
        for name, launcher in list(prefixes.items()):
            try:
                seconds[name].append(processes.run(launcher, environ, DEADLINE).seconds)
            except processes.ProcessError as error:
                comparison.notes.append(f"{name} failed: {error}")
                del prefixes[name], seconds[name]
    comparison.add("true", {name: summary(values) for name, values in seconds.items()})


def _check(launcher: list[str], count: int, environ: Mapping[str, str]) -> None:
    """Check that the launcher starts `count` processes, which also loads it from the disk into memory."""
    output = processes.run([*launcher, "echo", "a-process"], environ, DEADLINE).output
    if output.count("a-process") != count:
        raise processes.ProcessError(f"it should have started {count} processes, and said: {output}")


def _commands() -> dict[str, Callable[[], tuple[list[str], int]]]:
    return {
        DISTRUN: lambda: ([*launchers.distrun(), "-np", "2"], 2),
        DISTRUN_32: lambda: ([*launchers.distrun(), "-np", "32"], 32),
        TORCHRUN: lambda: ([launchers.torchrun(), "--nproc-per-node", "2", "--no-python"], 2),
        MPIRUN: lambda: ([launchers.mpirun(), "-np", "2"], 2),
    }
