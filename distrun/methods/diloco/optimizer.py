"""The outer optimizer: takes the outer steps of one model, of any framework.

One exchange is under way at a time: an average is used when the next fragment is due at the latest, and after 10 steps
at most, so one buffer in shared memory and one copy of what was sent serve all fragments. An outer step that overlaps
with training is added rather than written: `parameters += new anchor - what was sent`. So nothing that the host has
learned in the meantime is lost, and its ranks keep the same bits. Every step checks the engine for a lost host, because
a host that did not check would train alone for `every` steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distrun.errors import JobAbortedError, UsageError
from distrun.methods.diloco.fragments import Fragment, Schedule, divide
from distrun.methods.diloco.parameters import Array, Parameters, nesterov
from distrun.methods.diloco.settings import OuterSettings, check_equal
from distrun.runtime import collectives
from distrun.runtime.collectives.call import Call
from distrun.runtime.collectives.objects import allgather_object
from distrun.runtime.operations.feedback import Feedback
from distrun.runtime.operations.handle import AnyHandle
from distrun.runtime.operations.numbering import Numbering
from distrun.runtime.process_sets.process_set import ProcessSet
from distrun.runtime.world import world

_numbers = Numbering()  # identifies optimizers by the order of their construction, the same on all ranks


@dataclass
class Exchange:
    """An exchange of a fragment that is under way."""

    fragment: int
    until: int
    """The inner step after which to use its average."""
    handle: AnyHandle | None
    """None if there is no other host to exchange with."""
    gradient: Array
    """The outer gradient of this host, and, when the handle is done, the average of all."""
    sent: Array
    """The parameters at the beginning of the exchange."""
    engine: Any
    """The engine of the world. The next generation has another one."""


@dataclass
class Kept:
    """A host's state of one fragment, saved while its parameters and anchor are overwritten with another rank's."""

    parameters: Array
    version: int
    """The number of outer steps so far."""
    sent: Array | None
    """The parameters at the beginning of the exchange, if one was under way."""


class OuterOptimizer:
    """Takes outer steps. A face calls `begin_step` and `end_step` around each inner step, on all ranks."""

    def __init__(self, settings: OuterSettings, parameters: Parameters, hosts: ProcessSet) -> None:
        """`hosts` is the process set of the ranks of this host.

        Raises:
            UsageError: there are fewer parameters than fragments.
        """
        self.settings = settings
        self.parameters = parameters
        self.fragments = divide(parameters.sizes, settings.fragments)
        self.step = 0
        """The number of inner steps so far."""
        self.versions = [0] * settings.fragments
        """The number of outer steps of each fragment so far."""
        self.anchors: list[Array] = []
        """The anchor of each fragment. Empty until the first step after the warm-up."""
        self.velocities: list[Array] = []
        """The momentum of each fragment. Empty without momentum."""
        self.is_agreed = False
        """Whether all ranks have the same anchors."""
        self.has_moved = False
        """Whether this rank has made a step since all hosts were equal."""
        self.kept: dict[int, Kept] = {}
        self.under_way: Exchange | None = None
        self.name = f"outer_steps.{_numbers.next()}"
        self._schedule = Schedule(settings.every, settings.fragments, settings.warmup)
        self._hosts = hosts
        self._feedbacks = [Feedback() for _ in self.fragments]
        self._room: tuple[Any, Array] = (None, None)  # an engine, and the array in its memory
        self._sent: Array = None
        self._compared_in: Any = None  # the engine of the generation whose ranks have compared their settings

    # Around an inner step ---------------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Begin an inner step. The first one after the warm-up sets the anchor.

        Raises:
            UsageError: the ranks begin with different settings or parameters.
            JobAbortedError: a rank is gone. This is checked here since a host that rarely communicates would notice it
                late.
        """
        failure = getattr(world.engine(), "failure", None)  # a single process has none
        if failure is not None:
            raise JobAbortedError(failure)
        self.compare_settings()
        if not self.is_agreed and self.step >= self.settings.warmup:
            if not self.anchors:
                self.drop_anchor()
            self._compare()

    def compare_settings(self) -> None:
        """Compare the settings of all ranks, once for each generation, unless steps have been made.

        `begin_step` calls this. A face calls it earlier if its ranks do something together that depends on the
        settings.

        Raises:
            UsageError: the settings differ.
        """
        engine = world.engine()
        if self.step == 0 and self._compared_in is not engine:
            check_equal(allgather_object(self.settings, f"{self.name}.settings"))
            self._compared_in = engine

    def end_step(self) -> None:
        """End an inner step: use an average that is due, and start an exchange that is due."""
        self.step += 1
        self.has_moved = True
        if not self.is_agreed:
            return
        exchange = self.under_way
        if exchange is not None:
            if self.step >= exchange.until:
                self.finish()
            elif exchange.handle is not None:
                exchange.handle.poll()  # makes progress if the progress thread has no core of its own
        due = self._schedule.due(self.step)
        if due is not None:
            self._start(due)
            if not self.settings.overlap:
                self.finish()

    def drop_anchor(self) -> None:
        """Set the anchor to the current parameters."""
        self.make_room()
        for fragment, anchor in zip(self.fragments, self.anchors, strict=True):
            self.parameters.read(fragment, anchor)

    def _compare(self) -> None:
        own = [self.parameters.digest(anchor) for anchor in self.anchors]
        digests = collectives.allgather(np.array([own], np.int64), f"{self.name}.anchors")
        if (digests != digests[0]).any():
            self.anchors, self.velocities = [], []
            raise UsageError(
                "the ranks begin with different parameters, from which hosts would never come together: have them "
                "begin with those of one, by broadcast_parameters(..., root_rank=0) or, in Keras, by "
                "BroadcastGlobalVariablesCallback(0)"
            )
        self.is_agreed = True

    def make_room(self) -> None:
        """Allocate anchors and velocities, filled with zeros."""
        self.anchors = [self.parameters.zeros(fragment.count) for fragment in self.fragments]
        if self.settings.momentum:
            self.velocities = [self.parameters.zeros(fragment.count) for fragment in self.fragments]

    # Exchanges --------------------------------------------------------------------------------------------------------

    def _start(self, number: int) -> None:
        fragment, anchor = self.fragments[number], self.anchors[number]
        gradient, sent = self.gradient_room(fragment), self._sent_room(fragment)
        self.parameters.read(fragment, sent)
        self.parameters.subtract(anchor, sent, gradient)
        # The ranks of a host have the same parameters, so with one host there is nothing to average.
        handle = None if self._hosts.size() == world.size() else self.average(number, gradient)
        until = self.step + self._schedule.delay(number)
        self.under_way = Exchange(number, until, handle, gradient, sent, world.engine())

    def average(self, number: int, gradient: Array) -> AnyHandle:
        """Start to average `gradient`, an array of the fragment `number`, over the ranks."""
        call = Call("allreduce", f"{self.name}.{number}", wire=self.settings.wire, is_gradient=True)
        return self.parameters.average(self.fragments[number], gradient, call, self._feedbacks[number])

    def used(self, number: int) -> None:
        """Record that an average of the fragment `number` has been used, and keep its residuals."""
        self._feedbacks[number].keep()
        self.versions[number] += 1

    def finish(self) -> None:
        """Wait for the exchange that is under way, take its outer step, and apply it to the parameters."""
        exchange = self.under_way
        if exchange is None:
            return
        if exchange.engine is not world.engine():  # it belongs to an earlier generation
            self.under_way = None
            return
        if exchange.handle is not None:
            exchange.handle.wait()
        number, piece = exchange.fragment, self.parameters.piece
        fragment, anchor = self.fragments[number], self.anchors[number]
        velocity = self.velocities[number] if self.velocities else None
        nesterov(anchor, exchange.gradient, velocity, self.settings.outer_lr, self.settings.momentum, piece)
        if self.settings.overlap:  # keeps the progress made during the exchange
            self.parameters.subtract(anchor, exchange.sent, exchange.sent)
            self.parameters.add(fragment, exchange.sent)
        else:
            self.parameters.write(fragment, anchor)
        self.used(number)
        self.under_way = None

    def gradient_room(self, fragment: Fragment) -> Array:
        """Return the array for a fragment's outer gradient. All fragments share one."""
        engine = world.engine()
        if self._room[0] is not engine:  # the array is in shared memory, which belongs to a world
            self._room = engine, self.parameters.room(max(each.count for each in self.fragments))
        return self._room[1][: fragment.count]

    def _sent_room(self, fragment: Fragment) -> Array:
        if self._sent is None:
            self._sent = self.parameters.zeros(max(each.count for each in self.fragments))
        return self._sent[: fragment.count]

    # The state --------------------------------------------------------------------------------------------------------

    def keep(self) -> None:
        """Save this host's state before its parameters and anchors are overwritten with another rank's.

        `merge` includes this host's progress in the average.
        """
        exchange, self.under_way = self.under_way, None
        if not self.has_moved or not self.is_agreed:
            return
        for number, fragment in enumerate(self.fragments):
            if number in self.kept:  # saved already, when another generation ended before a merge
                continue
            own = self.parameters.zeros(fragment.count)
            self.parameters.read(fragment, own)
            sent = exchange.sent if exchange is not None and exchange.fragment == number else None
            self.kept[number] = Kept(own, self.versions[number], sent)
        self._sent = None  # `kept` refers to its memory

    def forget(self) -> None:
        """Drop an exchange that is under way, and saved states."""
        self.under_way = None
        self.kept = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state: the numbers of steps, and anchors and velocities by parameter, as views, not copies."""
        return {
            "step": self.step,
            "versions": list(self.versions),
            "anchors": self._by_parameter(self.anchors if self.is_agreed else []),
            "velocities": self._by_parameter(self.velocities if self.is_agreed else []),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load `state`, saved with any number of fragments. An exchange that is under way is dropped.

        Raises:
            UsageError: the state belongs to other parameters.
        """
        sizes = [len(anchor) for anchor in state["anchors"]]
        if sizes and sizes != list(self.parameters.sizes):
            raise UsageError(
                f"the state of outer steps is that of {len(sizes)} parameters with {sum(sizes)} elements, and there "
                f"are {len(self.parameters.sizes)} with {sum(self.parameters.sizes)}: load it with the model that it "
                "was saved with"
            )
        self.under_way = None
        self.step = int(state["step"])
        versions = list(state["versions"])
        self.versions = versions if len(versions) == len(self.fragments) else [max(versions)] * len(self.fragments)
        if not sizes:
            if self.is_agreed:
                self.anchors, self.velocities, self.is_agreed = [], [], False
            return
        if not self.anchors:
            self.make_room()
        self.is_agreed = True
        for own, given in ((self.anchors, state["anchors"]), (self.velocities, state["velocities"])):
            for part, value in zip(self._by_parameter(own), given, strict=False):
                part[:] = value

    def _by_parameter(self, flats: list[Array]) -> list[Array]:
        pairs = zip(self.fragments, flats, strict=False)
        return [part for fragment, flat in pairs for part in fragment.parts(flat)]
