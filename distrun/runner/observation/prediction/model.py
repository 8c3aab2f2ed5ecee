"""One training step at any number of hosts and ranks.

A rank waits for input, computes forward, then backward; on the way back, batches of gradients become ready. They queue
for one wire, on which one operation follows the other, in the order in which they are ready on the slowest rank; the
optimizer waits for the last. What an operation costs follows `distrun.runtime.backends`: within a host, ranks combine
their arrays in shared memory; between hosts, each host exchanges its part with every other one directly, along rails,
while it combines what has come. The slower of the two decides, for pieces of an array overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from distrun.runner.observation.prediction.order_statistics import slowest
from distrun.runner.observation.prediction.profile import Gradients, JobProfile

ONE_STEP_LIMIT, ONE_STEP_LIMIT_OF_TWO = 64 << 10, 1 << 20
"""Bytes that a host receives in one step, instead of two: `distrun.runtime.backends.hierarchical`."""
NEGOTIATION = 2
"""Messages that follow each other before an operation begins: to the coordinator, and back."""


@dataclass(frozen=True)
class Network:
    """The way of gradients, within a host and between hosts."""

    bits_per_s: float
    """The speed of a host's link in each direction."""
    efficiency: float
    """The share of it that gradients get."""
    latency: float
    """Seconds that a message takes from host to host."""
    local_bytes_per_s: float
    """How fast the ranks of a host combine their arrays, as the bytes that each of them passes on."""
    overhead: float = 0.0
    """Seconds that an operation takes beyond its bytes and messages."""
    fabric_bits_per_s: float | None = None
    """The limit of what all hosts together send at a time, where their switch is slower than all links."""

    def bytes_per_s(self, hosts: int) -> float:
        """Return what one of `hosts` sends in a second while all of them send."""
        rate = self.bits_per_s * self.efficiency
        return (rate if self.fabric_bits_per_s is None else min(rate, self.fabric_bits_per_s / hosts)) / 8


@dataclass(frozen=True)
class Work:
    """The work of a rank in a step; times in seconds."""

    forward: float
    backward: float
    after: float
    """The optimizer, and what else is neither hidden nor waiting."""
    input: float
    deviation: float
    """The standard deviation of input, forward and backward together, over ranks and steps."""
    gradients: tuple[Gradients, ...]

    @property
    def alone(self) -> float:
        """The step of a rank that is alone."""
        return self.input + self.forward + self.backward + self.after

    def share(self, part: float) -> Work:
        """Return the work on a part of the batch; that of the optimizer stays."""
        batches = tuple(replace(batch, ready=batch.ready * part) for batch in self.gradients)
        return Work(
            self.forward * part, self.backward * part, self.after, self.input * part, self.deviation * part, batches
        )


@dataclass(frozen=True)
class PredictedStep:
    """A step, in seconds."""

    seconds: float
    network: float
    """The time of all operations, be it hidden or not."""
    waiting: float
    """The part of it that is not hidden, by which they make the step longer."""
    straggling: float
    """How much longer than a usual rank the slowest one computes."""


def work_of(profile: JobProfile) -> Work:
    """Return the work of a usual rank of a job."""
    seconds = profile.seconds
    return Work(
        seconds.forward,
        seconds.backward,
        seconds.optimizer + seconds.other,
        seconds.input,
        float((profile.jitter**2 + profile.spread**2) ** 0.5),
        profile.gradients,
    )


def step(work: Work, hosts: int, ranks_per_host: int, network: Network) -> PredictedStep:
    """Return how long a step takes.

    Args:
        work: what each rank does.
        hosts: the number of hosts.
        ranks_per_host: the ranks of each.
        network: what gradients move over.
    """
    computing = work.forward + work.backward
    straggling = work.deviation * slowest(hosts * ranks_per_host)
    stretch = 1 + straggling / computing if computing else 1.0
    begin, end = work.input + work.forward * stretch, work.input + computing * stretch
    wire = busy = 0.0
    for batch in work.gradients:
        cost = operation(batch, hosts, ranks_per_host, network)
        wire = max(wire, begin + batch.ready * stretch) + cost
        busy += cost
    waiting = max(wire - end, 0.0) if busy else 0.0
    return PredictedStep(end + waiting + work.after, busy, waiting, straggling)


def operation(batch: Gradients, hosts: int, ranks_per_host: int, network: Network) -> float:
    """Return the seconds in which a batch of gradients is reduced when nothing is in its way."""
    if hosts == ranks_per_host == 1:
        return 0.0
    local = local_bytes(batch.bytes, ranks_per_host) / network.local_bytes_per_s
    if hosts == 1:
        return local + network.overhead
    wire = host_bytes(batch.wire_bytes, hosts) / network.bytes_per_s(hosts)
    return max(local, wire) + messages(batch.wire_bytes, hosts) * network.latency + network.overhead


def host_bytes(size: float, hosts: int) -> float:
    """Return the bytes that each host sends, and receives, to reduce an array of `size` bytes."""
    return (hosts - 1) * size if is_one_step(size, hosts) else 2 * (hosts - 1) / hosts * size


def is_one_step(size: float, hosts: int) -> bool:
    """Whether hosts send an array whole to each other instead of in parts, twice."""
    return (hosts - 1) * size <= ONE_STEP_LIMIT or (hosts == 2 and size <= ONE_STEP_LIMIT_OF_TWO)


def messages(size: float, hosts: int) -> int:
    """Return how many messages of an operation follow each other."""
    return NEGOTIATION + (1 if is_one_step(size, hosts) else 2)


def local_bytes(size: float, ranks: int) -> float:
    """Return the bytes that each rank of a host passes on to reduce an array within it."""
    return 2 * (ranks - 1) / ranks * size


def largest_saving(work: Work, hosts: int, ranks_per_host: int, network: Network) -> str:
    """Return what bounds a step: that which, if it took no time, would make it shortest."""
    nothing: Sequence[tuple[str, Work]] = (
        ("compute", replace(work.share(0.0), after=0.0, input=work.input)),
        ("network", replace(work, gradients=())),
        ("input", replace(work, input=0.0)),
    )
    return min(nothing, key=lambda item: step(item[1], hosts, ranks_per_host, network).seconds)[0]
