"""Allreduce between two hosts, one rank on each: 4 KB to 100 MB, beside plain sockets that move as many bytes."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.hosts.namespaces import ADDRESSES, A
from benchmarks.hosts.ranks import DISTRUN, GLOO, RemoteRank, meet
from benchmarks.hosts.streams import Stream
from benchmarks.support.comparison import Comparison
from benchmarks.support.measuring import Rounds, durations, summary, take_turns
from benchmarks.support.ranks import OPENMPI, run

SIZES = {
    "4 KB": (4 << 10, Rounds(60, turn=5)),
    "64 KB": (64 << 10, Rounds(60, turn=5)),
    "1 MB": (1 << 20, Rounds(30, turn=2)),
    "16 MB": (16 << 20, Rounds(15, warmup=3)),
    "100 MB": (100 << 20, Rounds(6, warmup=2)),
}
"""The number of bytes, and how often they are reduced."""
SKEW = 25e-6
"""The limit in seconds: runs that the ranks began further apart do not count."""
ONE_WAY, BOTH_WAYS, BOUND = "one way", "both ways", "bound"


def compare(rank: RemoteRank) -> Comparison:
    """Compare the allreduce of all sizes."""
    comparison = Comparison(
        "allreduce in place, sum, float32, 2 hosts, one rank each",
        "link and size",
        [ONE_WAY, BOTH_WAYS, BOUND, DISTRUN, GLOO, OPENMPI],
        [(GLOO, DISTRUN), (OPENMPI, DISTRUN), (DISTRUN, BOTH_WAYS), (DISTRUN, BOUND)],
        notes=[
            f"{ONE_WAY}, {BOTH_WAYS}: as many bytes through a plain TCP connection; {BOUND}: 2(n-1)/n x bytes / rate; "
            "of the rate, headers take 4.4 % at an MTU of 1500 and 0.7 % at 9000.",
            f"{DISTRUN}: an array of distrun.empty, where the others have ordinary memory; "
            f"{GLOO}: torch.distributed.all_reduce; "
            f"{OPENMPI}: mpi4py's Allreduce(IN_PLACE) over btl tcp.",
        ],
    )
    rank.note(comparison)
    stream = Stream.between(rank.rank, ADDRESSES[A])
    for label, (nbytes, rounds) in SIZES.items():
        programs = _programs(rank, stream, nbytes)
        spans = take_turns(programs, rounds.shortened() if rank.quick else rounds, stream.together, rank.settle)
        gathered = rank.mpi.allgather(spans)
        results = {name: durations([spans[name] for spans in gathered], SKEW) for name in programs}
        comparison.add(label, {name: summary(values) for name, values in results.items()})
    return comparison


def _programs(rank: RemoteRank, stream: Stream, nbytes: int) -> dict[str, Callable[[], object]]:
    outgoing, incoming = (memoryview(bytearray(b"x") * nbytes) for _ in range(2))
    reductions = rank.reductions(nbytes // 4)
    return {
        ONE_WAY: lambda: stream.one_way(outgoing, incoming),
        BOTH_WAYS: lambda: stream.exchange(outgoing, incoming),
        **{name: reduction.run for name, reduction in reductions.items()},
    }


if __name__ == "__main__":
    run(meet, compare)
