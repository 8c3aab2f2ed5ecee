"""A model of one training step on any number of hosts and ranks.

A rank waits for input, then computes the forward and the backward pass. During the backward pass, batches of gradients
become ready. They queue for the network, which executes one operation after the other, in the order in which they are
ready on the slowest rank. The optimizer waits for the last one. The cost of an operation follows
`distrun.runtime.backends`: within a host, ranks combine their arrays in shared memory. Between hosts, each host
exchanges its part with every other host directly, along rails, while it combines the parts that have come. The slower
of the two determines the time, as the pieces of an array are pipelined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from distrun.runner.observation.prediction.profile import Gradients, JobProfile

ONE_STEP_LIMIT, ONE_STEP_LIMIT_OF_TWO = 64 << 10, 1 << 20
"""The most bytes that a host receives in one step instead of two. See `distrun.runtime.backends.hierarchical`."""
NEGOTIATION = 2
"""Sequential messages before an operation begins: to the coordinator, and back."""


@dataclass(frozen=True)
class Network:
    """The properties of the network for gradients, within a host and between hosts."""

    bits_per_s: float
    """The speed of a host's link in each direction."""
    efficiency: float
    """The share of `bits_per_s` that gradients get."""
    latency: float
    """Seconds that a message takes from host to host."""
    local_bytes_per_s: float
    """The rate of combining arrays within a host, as bytes that each rank passes on per second."""
    overhead: float = 0.0
    """Seconds that an operation takes beyond the time of its bytes and messages."""
    fabric_bits_per_s: float | None = None
    """The limit of the rate that all hosts together send at, if their switch is slower than all links."""

    def bytes_per_s(self, hosts: int) -> float:
        """Return the bytes per second that one of `hosts` sends while all of them send."""
        rate = self.bits_per_s * self.efficiency
        return (rate if self.fabric_bits_per_s is None else min(rate, self.fabric_bits_per_s / hosts)) / 8


@dataclass(frozen=True)
class Work:
    """The work of a rank in a step. Times are in seconds."""

    forward: float
    backward: float
    after: float
    """The optimizer, and other time that is neither overlapped nor waiting."""
    input: float
    deviation: float
    """The standard deviation of input, forward and backward together, over ranks and steps."""
    gradients: tuple[Gradients, ...]

    @property
    def alone(self) -> float:
        """The time of a step of a single rank."""
        return self.input + self.forward + self.backward + self.after

    def share(self, part: float) -> Work:
        """Return the work for a part of the batch. The optimizer's work does not change."""
        batches = tuple(replace(batch, ready=batch.ready * part) for batch in self.gradients)
        return Work(
            self.forward * part, self.backward * part, self.after, self.input * part, self.deviation * part, batches
        )


@dataclass(frozen=True)
class PredictedStep:
    """A predicted step. All times are in seconds."""

    seconds: float
    network: float
    """The time of all operations, overlapped with the backward pass or not."""
    waiting: float
    """The part of `network` that is not overlapped, and so lengthens the step."""
    straggling: float
    """How much longer than a typical rank the slowest one computes."""


def work_of(profile: JobProfile) -> Work:
    """Return the work of a typical rank of a job."""
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
    """Return the prediction for a step in which each rank has this work."""
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


def slowest(count: int) -> float:
    """Return the expected maximum of `count` standard normal draws: 0 for one, 1.5 for 9, 3.0 for 512.

    The computing times of the ranks are modelled as independent draws from one normal distribution. All ranks wait for
    the slowest in every step. Its expectation has no closed form. G. Blom's approximation (Statistical Estimates and
    Transformed Beta Variables, 1958) errs by less than 2 % of a standard deviation up to 10,000 draws. J. Chen and
    others found such delays in synchronous training (Revisiting Distributed Synchronous SGD, 2016, arXiv 1604.00981).
    Their distribution has a longer tail than the normal one, which the error bar allows for.
    """
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def operation(batch: Gradients, hosts: int, ranks_per_host: int, network: Network) -> float:
    """Return the seconds that reducing a batch of gradients takes on an idle network."""
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
    """Whether hosts send the whole array to each other, in one step, instead of parts in two steps."""
    return (hosts - 1) * size <= ONE_STEP_LIMIT or (hosts == 2 and size <= ONE_STEP_LIMIT_OF_TWO)


def messages(size: float, hosts: int) -> int:
    """Return the number of sequential messages of an operation."""
    return NEGOTIATION + (1 if is_one_step(size, hosts) else 2)


def local_bytes(size: float, ranks: int) -> float:
    """Return the bytes that each rank of a host passes on to reduce an array within it."""
    return 2 * (ranks - 1) / ranks * size


def largest_saving(work: Work, hosts: int, ranks_per_host: int, network: Network) -> str:
    """Return what bounds a step: the part that would shorten it most if it took no time."""
    nothing: Sequence[tuple[str, Work]] = (
        ("compute", replace(work.share(0.0), after=0.0, input=work.input)),
        ("network", replace(work, gradients=())),
        ("input", replace(work, input=0.0)),
    )
    return min(nothing, key=lambda item: step(item[1], hosts, ranks_per_host, network).seconds)[0]
