"""Policy: what an operation costs the coordinator, by the number of ranks, without ranks, memory or network."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks.support.comparison import Comparison
from benchmarks.support.measuring import summary
from distrun.runtime.negotiation import messages
from distrun.runtime.negotiation.controller import Controller
from distrun.runtime.negotiation.negotiator import Negotiator
from distrun.runtime.negotiation.pending import PendingOperations
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import Request
from distrun.runtime.operations.timeouts import FOREVER

SIZES = (2, 64, 512, 2048, 10_000)
SUBMISSIONS = 200_000  # of all ranks together, in each measurement
ONE_ORDER, ANY_ORDER, IN_FULL, MESSAGES = "one order", "any order", "in full", "with messages"
REQUESTS = [Request("allreduce", f"gradient.{number}", "float32", ((1000,),)) for number in range(8)]


def compare(quick: bool) -> Comparison:
    """Compare the ways in which operations are negotiated, for more and more ranks."""
    comparison = Comparison(
        "policy, seconds of rank 0 per operation of all ranks",
        "ranks",
        [ONE_ORDER, ANY_ORDER, IN_FULL, MESSAGES],
        [],
        notes=[
            f"{ONE_ORDER}: cache ids, in the same order on all ranks; {ANY_ORDER}: every other rank has them reversed; "
            f"{IN_FULL}: requests without cache ids; {MESSAGES}: {ONE_ORDER}, taken out of messages, and the decision "
            "put into a message for each rank."
        ],
    )
    for size in SIZES:
        rounds = max(3, SUBMISSIONS // (3 if quick else 1) // size // len(REQUESTS))
        results = {}
        for name, measure in ((ONE_ORDER, _one_order), (ANY_ORDER, _any_order), (IN_FULL, _in_full)):
            results[name] = summary([seconds / len(REQUESTS) for seconds in measure(size, rounds)])
        results[MESSAGES] = summary([seconds / len(REQUESTS) for seconds in _with_messages(size, rounds)])
        comparison.add(f"{size:,}", results)
    return comparison


def _taught(size: int) -> Controller:
    controller = Controller({0: range(size)})
    for request in REQUESTS:
        for rank in range(size):
            controller.submit(rank, request, "train.py:1", 0.0)
    controller.decisions()
    return controller


def _timed(rounds: int, step: Callable[[], None]) -> Iterator[float]:
    for _ in range(rounds):
        begun = time.perf_counter()
        step()
        yield time.perf_counter() - begun


def _one_order(size: int, rounds: int) -> Iterator[float]:
    controller = _taught(size)

    def step() -> None:
        for cache_id in range(len(REQUESTS)):
            for rank in range(size):
                controller.submit_ids(rank, [cache_id], 0.0)
            assert controller.decisions()

    return _timed(rounds, step)


def _any_order(size: int, rounds: int) -> Iterator[float]:
    controller = _taught(size)
    forth = list(range(len(REQUESTS)))
    orders = forth, forth[::-1]

    def step() -> None:
        for rank in range(size):
            controller.submit_ids(rank, orders[rank % 2], 0.0)
        assert controller.decisions()

    return _timed(rounds, step)


def _in_full(size: int, rounds: int) -> Iterator[float]:
    controller = Controller({0: range(size)}, capacity=0)

    def step() -> None:
        for request in REQUESTS:
            for rank in range(size):
                controller.submit(rank, request, "train.py:1", 0.0)
            assert controller.decisions()

    return _timed(rounds, step)


class _ControlPlane:
    """Takes and gives messages at once."""

    is_across_hosts = speaks_for_host = is_stuck = is_sending = False
    survey = None

    def __init__(self) -> None:
        self.incoming: list[tuple[int, bytes]] = []
        self.sent = 0

    def messages(self) -> list[tuple[int, bytes]]:
        taken, self.incoming = self.incoming, []
        return taken

    def send(self, rank: int, message: bytes) -> None:
        self.sent += 1

    def send_all(self, ranks: Sequence[int], message: bytes) -> None:
        for rank in ranks:
            if rank:
                self.send(rank, message)


def _with_messages(size: int, rounds: int) -> Iterator[float]:
    control_plane, operations, controller = _ControlPlane(), PendingOperations(0), Controller({0: range(size)})
    coordinator = Negotiator(
        *(0, size, control_plane, operations, controller),  # type: ignore[arg-type]
        *(None, FOREVER, str, {0: range(size)}),
    )

    def submit(request: Request, message: bytes) -> None:
        operations.enter(Handle(None, request, ()))  # type: ignore[arg-type]
        control_plane.incoming = [(rank, message) for rank in range(1, size)]
        coordinator.progress()
        assert operations.decided, "not all ranks' messages were taken"
        operations.decided.clear()

    for request in REQUESTS:
        submit(request, messages.FULL_REQUEST + request.encode("train.py:1"))
    known = [messages.pack_ids(messages.CACHE_IDS, [cache_id]) for cache_id in range(len(REQUESTS))]

    def step() -> None:
        for request, message in zip(REQUESTS, known, strict=True):
            submit(request, message)

    return _timed(rounds, step)
