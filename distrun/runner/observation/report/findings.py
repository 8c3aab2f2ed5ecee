"""The conclusions from a summary, as sentences: what bounds the job, which ranks delay it, and how well it scales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distrun.host.ranks import list_ranks
from distrun.runner.observation.model.stragglers import Straggler
from distrun.runner.observation.report.summary import ACTIVITIES, COMPUTING, RankSummary, Summary
from distrun.runner.observation.report.svg import bits, duration

_NOTABLE = 0.1
"""A share of a step that is worth mentioning."""
_BOUND = 0.2
"""The least share of a step that makes waiting for input, or moving data, the bound of a job."""

_BUSY = 95.0
"""The least percentage of all cores that makes a host busy."""


@dataclass(frozen=True)
class Finding:
    """The bound of a job, with advice."""

    sentence: str
    advice: str = ""


@dataclass(frozen=True)
class Efficiency:
    """The scaling efficiency of a job."""

    alone: float
    """Seconds of a step on one rank alone."""
    step: float
    """Seconds of a step of the job."""
    is_given: bool
    """Whether `alone` was given by the user, rather than measured."""

    @property
    def share(self) -> float:
        """The efficiency: 1 if a step of the job takes as long as a step on one rank."""
        return self.alone / self.step if self.step else 0.0

    @property
    def explanation(self) -> str:
        """The meaning of the efficiency, in a sentence or two."""
        if self.is_given:
            return (
                f"A step of one rank alone takes {duration(self.alone)}, as --single-rank-step says, and one of this "
                f"job {duration(self.step)}."
            )
        return (
            f"The ranks compute and load for {duration(self.alone)} of each step and lose the rest of its "
            f"{duration(self.step)} by waiting for each other and by moving data. It is measured in this job, so what "
            "its ranks take from each other on their host (cores, memory, disk) counts as their own time: "
            "--single-rank-step SECONDS tells what one rank really needs alone."
        )


def training(summary: Summary) -> list[RankSummary]:
    """Return the ranks that have done steps."""
    return [rank for rank in summary.ranks if rank.steps and rank.step > 0]


def efficiency(summary: Summary) -> Efficiency | None:
    """Return the scaling efficiency relative to one rank, or None if no rank has done a step."""
    ranks = training(summary)
    if not ranks:
        return None
    given, profiled = summary.single_rank_step, summary.scaling
    step = profiled.step or _mean(ranks, *ACTIVITIES)
    alone = given or profiled.alone or _mean(ranks, "input", "saving", *COMPUTING)
    return Efficiency(alone, step, given is not None)


def finding(summary: Summary) -> Finding:
    """Return what bounds the job."""
    ranks = training(summary)
    if not ranks:
        return Finding(
            "No rank has told of two steps, so where the time went is not known.",
            "Steps are those of an optimizer of distrun's; a job that ends in its first step has none.",
        )
    step = _mean(ranks, *ACTIVITIES)
    late = _of_stragglers(summary.stragglers, ranks)
    if late is not None:
        return late
    input_time, moving, waiting = (_mean(ranks, name) for name in ("input", "moving", "waiting"))
    computing = _mean(ranks, *COMPUTING)
    if input_time >= _BOUND * step and input_time >= moving:
        return Finding(
            f"Input-bound: the ranks wait for their next batch for {duration(input_time)} of each step of "
            f"{duration(step)} ({input_time / step:.0%}).",
            "Load batches ahead of the training (num_workers in a DataLoader, prefetch() in tf.data), or from a faster "
            "disk.",
        )
    if moving >= _BOUND * step:
        return _of_exchange(summary, moving, computing, step)
    rest = f"; waiting for other ranks takes {waiting / step:.0%}" if waiting > _NOTABLE * step else ""
    return Finding(
        f"Compute-bound: the ranks compute for {duration(computing)} of each step of {duration(step)} "
        f"({computing / step:.0%}){rest}.",
        "More ranks, or a faster model on each, make it faster; the network and the input do not hold it up.",
    )


def _of_exchange(summary: Summary, moving: float, computing: float, step: float) -> Finding:
    hosts = summary.hosts
    bound, way = ("Network", "the network") if len(hosts) > 1 else ("Exchange", "their host's memory")
    sentence = (
        f"the ranks wait for data on their way over {way} for {duration(moving)} of each step of {duration(step)} "
        f"({moving / step:.0%}), and compute for {duration(computing)}."
    )
    if len(hosts) == 1 and (hosts[0].cpu or 0.0) > _BUSY:
        return Finding(
            f"Bound by the cores of {hosts[0].name}: {sentence}",
            f"They are busy to {hosts[0].cpu:.0f} %, so that ranks must wait for a core to exchange data: start fewer "
            "ranks there, or end what else runs.",
        )
    advice = "Fewer bytes per step would help."
    if len(hosts) > 1:
        busiest = max(hosts, key=lambda host: host.sent or 0.0)
        carried = f"The network of {busiest.name} carried {bits(busiest.sent)} outwards. " if busiest.sent else ""
        is_compressed = "DISTRUN_WIRE_DTYPE" in summary.settings
        compression = "" if is_compressed else ", --wire-dtype bfloat16"
        advice = f"{carried}A faster network{compression} or fewer bytes per step would help."
    if moving > computing:
        advice += (
            " The batch is small for this exchange: a larger one per rank, or several backward passes per step, gives "
            "each exchange more computing to pay for it."
        )
    return Finding(f"{bound}-bound: {sentence}", advice)


def _of_stragglers(stragglers: Sequence[Straggler], ranks: Sequence[RankSummary]) -> Finding | None:
    """Return the finding that a rank, or the ranks of a host, delay the others, or None if ranks are late in turns."""
    if not stragglers:
        return None
    first = stragglers[0]
    host = {straggler.rank for straggler in stragglers} & {rank.rank for rank in ranks if rank.host == first.host}
    sentence = f"Held up by one rank: {first.sentence}."
    others = [rank.held_up / rank.step for rank in ranks if rank.rank != first.rank]
    if first.share < 2 * max(others, default=0.0):
        if not 1 < len(host) == len(stragglers) <= len(ranks) // 2:
            return None
        sentence = f"Held up by the host {first.host}, {list_ranks(sorted(host))}: {first.sentence}."
    advice = "Look for what else runs on its host, and for what its processor or memory does slower than the others'."
    if "input" in first.cause:
        advice = "Its data come from a slower disk or loader than those of the others, or there are more of them."
    return Finding(sentence, advice)


def _mean(ranks: Sequence[RankSummary], *activities: str) -> float:
    return sum(rank.seconds.get(name, 0.0) for rank in ranks for name in activities) / len(ranks)
