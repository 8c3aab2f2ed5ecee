"""ObjectState: a state made of parts, one of which holds the plain objects."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distrun.contract import horovod
from distrun.elastic.donor import NEW, DonorCandidate, Election, elect
from distrun.elastic.part import Part, StatefulPart, is_stateful
from distrun.elastic.state import State
from distrun.errors import UsageError
from distrun.runtime import collectives
from distrun.runtime.collectives import objects
from distrun.runtime.collectives.copies import broadcast_arrays
from distrun.runtime.world import world

log = logging.getLogger("distrun")

_UNCERTAIN = (
    "no rank is at a step boundary, and none has committed a copy: training goes on from rank %d's state, which may be "
    "in the middle of a step; call state.advance() right after optimizer.step()"
)


class ObjectState(State):
    """A state of Python objects, each of which is an attribute: `ObjectState(epoch=0, best=1e9)`.

    After a loss of ranks, all continue from the state of the rank with the most steps, which sends it to the others.
    Objects are pickled. The frameworks' states extend this one by models and optimizers, whose tensors are broadcast.
    """

    def __init__(
        self, bcast_object: Callable[..., Any] | None = None, get_rank: Callable[[], int] | None = None, **kwargs: Any
    ) -> None:
        """Make a state whose attributes are the keyword arguments.

        Args:
            bcast_object: a function that sends objects, such as `distrun.broadcast_object`.
            get_rank: accepted for Horovod's sake, and not needed.
            kwargs: the attributes. Objects with `state_dict` and `load_state_dict`, such as what `distrun.data.shard`
                returns, are kept and sent by these. Other objects are pickled.

        Raises:
            UsageError: an attribute would hide a method of the state.
        """
        super().__init__(bcast_object or objects.broadcast_object, get_rank)
        self._parts: dict[str, Part] = {}
        self._committed = NEW
        self._has_copy = False
        self._is_torn = False
        """Whether this rank has received only a part of another's state."""
        self._is_clean = True
        """Whether training can continue from this rank's state, as of the last `recover`."""
        self._election: Election | None = None
        names = []
        for name, value in kwargs.items():
            if callable(getattr(type(self), name, None)):
                raise UsageError(
                    f"{name}= would hide the method {name} of {type(self).__name__}: give the attribute another name"
                )
            part = value if isinstance(value, Part) else self.part_of(name, value)
            if part is None:
                names.append(name)
            else:
                self._parts[name] = part
            setattr(self, name, value)
        self._parts["plain objects"] = _Objects(self, names)

    # For classes that extend it ---------------------------------------------------------------------------------------

    def part_of(self, name: str, value: Any) -> Part | None:
        """Return the part that keeps and sends an attribute, or None for an object to pickle."""
        return StatefulPart(value) if is_stateful(value) else None

    def broadcast_tensors(self, tensors: Sequence[Any], root_rank: int) -> None:
        """Overwrite the tensors of all parts with the root's, in place. Here they are contiguous numpy arrays."""
        broadcast_arrays(tensors, root_rank, "elastic.tensors")

    # The protocol -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start counting boundaries. Earlier copies are no longer used."""
        super().begin()
        self._committed = NEW
        self._has_copy = False

    def mark(self) -> None:
        """Note a step boundary."""
        super().mark()
        for part in self._parts.values():
            part.advance()

    def save(self) -> None:
        """Keep a copy of every part, in host memory."""
        for part in self._parts.values():
            part.save()
        self._committed = self._boundaries
        self._has_copy = True

    def restore(self) -> None:
        """Go back to the copy that `commit` has kept or, in Horovod's mode, `sync`.

        Raises:
            UsageError: there is no copy.
        """
        if not self._has_copy:
            raise UsageError(
                f"{type(self).__name__}.restore(): there is no copy to go back to: call commit() or save() before it"
            )
        for part in self._parts.values():
            part.restore()
            part.mark()
        self._boundaries = self._committed
        self._is_torn = False

    def recover(self, is_aborted: bool) -> None:
        """Go back to the last commit if this rank is in the middle of a step, and has one."""
        if is_aborted:
            self.abandon()
        self._is_clean = not self._is_torn and all(part.is_clean() for part in self._parts.values())
        if not self._is_clean and self._has_copy:
            self.restore()
            self._is_clean = True

    def elect(self) -> None:
        """Agree with the other ranks on the donor: the rank whose state all take in `sync`."""
        own = np.array([[self._boundaries, self._is_clean]], np.int64)
        rows = collectives.allgather(own, "elastic.standings").tolist()
        self._election = election = elect([DonorCandidate(boundaries, bool(clean)) for boundaries, clean in rows])
        is_known = election.is_certain or all(part.is_usable() for part in self._parts.values())
        if not is_known and world.rank() == election.donor:
            log.warning(_UNCERTAIN, election.donor)

    def abandon(self) -> None:
        """Drop what is left of a step that failed half-way."""
        for part in self._parts.values():
            part.abandon()

    def sync(self) -> None:
        """Give all ranks the state of the elected donor or, outside of `elastic.run`, of rank 0.

        What is left of an epoch is divided among all ranks again. In Horovod's mode the state is committed.

        Raises:
            UsageError: this rank's script has made another state than the donor's.
            CollectiveError: a rank is gone.
        """
        election, self._election = self._election or Election(0, max(0, self._boundaries), sends=True), None
        is_donor = world.rank() == election.donor
        described = {name: part.describe() for name, part in self._parts.items()} if is_donor else None
        assert self._bcast_object is not None
        described = self._bcast_object(described, root_rank=election.donor, name="elastic.state")
        if not is_donor:
            self._adopt(described)
        if election.sends:
            self._is_torn = not is_donor
            self.broadcast_tensors(
                [tensor for part in self._parts.values() for tensor in part.tensors()], election.donor
            )
        for part in self._parts.values():
            part.stay() if is_donor else part.complete()
        for part in self._parts.values():
            part.meet()
        self._is_torn = False
        self._boundaries = election.boundaries
        for part in self._parts.values():
            part.mark()
        if horovod.is_on(os.environ):
            self.save()

    def _adopt(self, described: dict[str, Any]) -> None:
        if list(described) != list(self._parts):
            raise UsageError(
                f"{type(self).__name__} is made of {', '.join(self._parts)} on rank {world.rank()}, and of "
                f"{', '.join(described)} on the rank whose state it is to take: give it the same arguments on all ranks"
            )
        for name, part in self._parts.items():
            part.adopt(described[name])


class _Objects(Part):
    """The attributes of a state that are plain objects."""

    def __init__(self, state: State, names: Sequence[str]) -> None:
        self._state = state
        self._names = names
        self._saved: dict[str, Any] = {}

    def save(self) -> None:
        self._saved = copy.deepcopy(self.describe())

    def restore(self) -> None:
        self.adopt(copy.deepcopy(self._saved))

    def describe(self) -> dict[str, Any]:
        return {name: getattr(self._state, name) for name in self._names}

    def adopt(self, description: dict[str, Any]) -> None:
        for name, value in description.items():
            setattr(self._state, name, value)
