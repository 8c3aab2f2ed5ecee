"""The steps of an exchange: each queues the reduction of as many elements as fit into the temporary memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from distrun.runtime.gpu.fusion_memory import FusionMemory
from distrun.runtime.gpu.nccl.library import AnyCommunicator
from distrun.runtime.gpu.nccl.reduction import BYTES
from distrun.runtime.gpu.packing import FusionSlots, Location, Packer
from distrun.runtime.gpu.quantised.kernels import BITS, Kernels
from distrun.runtime.gpu.quantised.places import ITEMSIZE, Places, packing, single, size_of
from distrun.runtime.operations.feedback import Feedback
from distrun.runtime.transport.host_layout import HostLayout
from distrun.tensor_fusion.device_packing import Piece
from distrun.tensor_fusion.device_quantisation import PIECES, Addend, Source, nbytes

_FLOAT32 = "float32"

Transfer = tuple[int, int, int]
"""A rank of the group, an address, and the number of bytes there."""


@dataclass(frozen=True)
class Resources:
    """The resources of one rank of a group for exchanges."""

    communicator: AnyCommunicator
    packer: Packer
    kernels: Kernels
    fusion: FusionMemory
    hosts: HostLayout
    """The ranks of the group on each host. There are several hosts."""


@dataclass(frozen=True)
class Operation:
    """A reduction of float32 numbers."""

    sources: Places
    """The places of the elements. Zeros stand for small tensors, which are reduced separately."""
    targets: Places
    """The places for the results of an allreduce, with zeros for the same tensors."""
    wire: str
    """The type on the wire."""
    prescale: float
    factor: float
    """The factor of sums."""


class Step:
    """An exchange of consecutive elements: each rail has a piece of them, and each host a part of every piece."""

    def __init__(
        self,
        resources: Resources,
        operation: Operation,
        parts: Sequence[Sequence[slice]],
        stream: int,
        feedback: Feedback | None = None,
    ) -> None:
        """
        Args:
            parts: the part of each host, by rail, then by host.
            feedback: holds the residuals. None if this rank has no rail.
        """
        self._communicator, self._packer, self._kernels = resources.communicator, resources.packer, resources.kernels
        self._fusion, self._hosts, self._stream = resources.fusion, resources.hosts, stream
        self._operation, self._feedback, self._parts = operation, feedback, parts
        self._pieces = [slice(those[0].start, those[-1].stop) for those in parts]
        self._is_alone = len(self._hosts.local_ranks) == 1
        self._slots = FusionSlots()
        # The slots where the values of each rail's piece are packed, and later, after these have been used, its
        # results.
        self._rooms = [
            self._slots.add(size_of(piece) * ITEMSIZE) if self._needs_room(piece) else None for piece in self._pieces
        ]
        if self._hosts.has_rail:
            self._allot(self._pieces[self._hosts.position], parts[self._hosts.position])

    def _needs_room(self, piece: slice) -> bool:
        """Return whether a rail's values must be packed. A host's only rank can quantise from up to `PIECES` places."""
        sources = self._operation.sources.part(piece)
        if self._is_alone:
            return len(sources) > PIECES
        return not (single(sources) and self._operation.prescale == 1.0)

    def _allot(self, piece: slice, parts: Sequence[slice]) -> None:
        """Allocate the slots that a rank with a rail needs, for its rail's `piece` and the hosts' `parts` of it."""
        slots, own = self._slots, parts[self._hosts.own]
        self._sent = slots.add(self._nbytes(*parts))
        self._received = slots.add(self._nbytes(own) * len(parts))
        self._contribution = slots.add(size_of(own) * ITEMSIZE)
        if not self._is_alone:
            self._values = slots.add(size_of(piece) * ITEMSIZE * len(self._hosts.local_ranks))

    def _nbytes(self, *parts: slice) -> int:
        """Return the number of bytes of quantised `parts`."""
        return sum(nbytes(size_of(part), BITS[self._operation.wire]) for part in parts)

    def _at(self, slot: Location, offset: int = 0) -> int:
        return slot.pointer(self._base) + offset

    # Within the host -------------------------------------------------------------------------------------------------

    def _within_host(self) -> tuple[Places, float]:
        """Return this host's sums of this rail's piece, and the factor that they must still be multiplied by."""
        self._base = self._fusion.pointer(self._slots.nbytes, self._stream)
        sources = [self._operation.sources.part(piece) for piece in self._pieces]
        if self._is_alone and len(sources[0]) <= PIECES:
            return self._operation.sources, self._operation.prescale
        addresses: list[int] = []
        packs: list[Piece] = []
        for found, room in zip(sources, self._rooms, strict=True):
            addresses.append(self._gathered(found, room, packs))
        self._copy(packs, self._operation.prescale)
        if self._is_alone:
            return Places([Source(addresses[0], size_of(self._pieces[0]))], self._pieces[0].start), 1.0
        return self._summed(addresses), 1.0

    def _gathered(self, sources: Sequence[Source], room: Location | None, packs: list[Piece]) -> int:
        """Return the address of the numbers of `sources`, contiguous and scaled.

        It is their own address if possible, else `room`. In that case, add the copies to `packs`.
        """
        if single(sources) and self._operation.prescale == 1.0:
            return sources[0].address
        assert room is not None
        packs += packing(sources, self._at(room))
        return self._at(room)

    def _summed(self, addresses: Sequence[int]) -> Places:
        """Send the values of each rail's piece to that rail's rank on this host. Add the values of this rank's rail, if
        any."""
        hosts, ranks = self._hosts, self._hosts.local_ranks
        sends = [
            (ranks[rail], address, size_of(piece) * ITEMSIZE)
            for rail, (address, piece) in enumerate(zip(addresses, self._pieces, strict=True))
        ]
        if not hosts.has_rail:
            self._swap(sends, [])
            return Places([])
        piece = self._pieces[hosts.position]
        count = size_of(piece)
        rows = [self._at(self._values, place * count * ITEMSIZE) for place in range(len(ranks))]
        self._swap(sends, [(rank, row, count * ITEMSIZE) for rank, row in zip(ranks, rows, strict=True)])
        total = rows[hosts.position]
        addends = [Addend(addresses[place] if place == hosts.position else row, True) for place, row in enumerate(rows)]
        self._add_up(addends, count, total)
        return Places([Source(total, count)], piece.start)

    # Between hosts ---------------------------------------------------------------------------------------------------

    def _combine(self, values: Places, factor: float, out: int) -> None:
        """Send the other hosts their parts of this rail's piece, and write this host's combined part to `out`."""
        hosts, rail = self._hosts, self._hosts.position
        parts = self._parts[rail]
        own, size = parts[hosts.own], self._nbytes(parts[hosts.own])
        sends, rows = [], [self._at(self._received, host * size) for host in range(hosts.count)]
        for host in hosts.others:
            sent = self._at(self._sent, self._nbytes(*parts[:host]))
            sends.append((hosts.peer(host), sent, self._nbytes(parts[host])))
            self._quantise(values.part(parts[host]), parts[host], sent, factor)
        addends = [Addend(row) for row in rows]
        addends[hosts.own] = Addend(self._own_values(values.part(own), factor), True)
        self._swap(sends, [(hosts.peer(host), rows[host], size) for host in hosts.others])
        self._add_up(addends, size_of(own), out, self._operation.factor)

    def _own_values(self, values: Sequence[Source], factor: float) -> int:
        """Return the address of this host's values of its own part, contiguous and scaled."""
        if single(values) and factor == 1.0:
            return values[0].address
        self._copy(packing(values, self._at(self._contribution)), factor)
        return self._at(self._contribution)

    # What is queued --------------------------------------------------------------------------------------------------

    def _quantise(
        self, values: Sequence[Source], part: slice, raw: int, factor: float, are_results: bool = False
    ) -> None:
        if not size_of(part):
            return
        residuals = 0, 0
        if self._feedback is not None:
            residuals = self._feedback.residuals(part.start, size_of(part), are_results)
        self._kernels.quantise(self._operation.wire, values, raw, factor, residuals, self._stream)

    def _add_up(self, addends: Sequence[Addend], count: int, out: int, factor: float = 1.0) -> None:
        if count:
            self._kernels.add_up(self._operation.wire, addends, count, out, factor, self._stream)

    def _copy(self, pieces: Iterable[Piece], factor: float) -> None:
        if pieces := list(pieces):
            self._packer.copy(pieces, _FLOAT32, _FLOAT32, factor, self._stream)

    def _swap(self, sends: Sequence[Transfer], receives: Sequence[Transfer]) -> None:
        """Send and receive in one group. Transfers from this rank to itself are left out."""
        communicator = self._communicator
        with communicator.group():
            for peer, address, size in sends:
                if size and peer != communicator.rank:
                    communicator.send(address, size, BYTES, peer, self._stream)
            for peer, address, size in receives:
                if size and peer != communicator.rank:
                    communicator.recv(address, size, BYTES, peer, self._stream)


class ReducescatterStep(Step):
    """A step of a reducescatter: a rank's result is its own part of its rail's piece. Every rank has a rail."""

    def queue(self, out: int) -> None:
        """Queue the whole step, which writes the result to `out`."""
        values, factor = self._within_host()
        self._combine(values, factor, out)


class AllreduceStep(Step):
    """A step of an allreduce: the combined parts are sent to all hosts, and there to all ranks."""

    def __init__(
        self,
        resources: Resources,
        operation: Operation,
        parts: Sequence[Sequence[slice]],
        stream: int,
        feedback: Feedback | None,
    ) -> None:
        super().__init__(resources, operation, parts, stream, feedback)
        self._results = [self._slots.add(self._nbytes(*those)) for those in parts]
        if self._hosts.has_rail:
            self._sum = self._slots.add(size_of(parts[self._hosts.position][self._hosts.own]) * ITEMSIZE)

    def _needs_room(self, piece: slice) -> bool:
        return super()._needs_room(piece) or not single(self._operation.targets.part(piece))

    def queue(self) -> None:
        """Queue the whole step."""
        values, factor = self._within_host()
        if self._hosts.has_rail:
            self._combine(values, factor, self._at(self._sum))
            self._tell_hosts()
        if not self._is_alone:
            self._pass_on()
        self._restore()

    def _result(self, rail: int, host: int) -> int:
        """Return the address of the quantised result of the part of `host` on `rail`."""
        return self._at(self._results[rail], self._nbytes(*self._parts[rail][:host]))

    def _tell_hosts(self) -> None:
        """Send the result of this host's part to the other hosts, and receive the results of their parts."""
        hosts, rail = self._hosts, self._hosts.position
        parts, result = self._parts[rail], self._result(rail, hosts.own)
        own, size = parts[hosts.own], self._nbytes(parts[hosts.own])
        self._quantise([Source(self._at(self._sum), size_of(own))], own, result, 1.0, are_results=True)
        self._swap(
            [(hosts.peer(host), result, size) for host in hosts.others],
            [(hosts.peer(host), self._result(rail, host), self._nbytes(parts[host])) for host in hosts.others],
        )

    def _pass_on(self) -> None:
        """Send this rail's results to the other ranks of this host, and receive the results of the other rails."""
        hosts, ranks, sends = self._hosts, self._hosts.local_ranks, []
        sizes = [self._nbytes(*parts) for parts in self._parts]
        if hosts.has_rail:
            result, size = self._result(hosts.position, 0), sizes[hosts.position]
            sends = [(rank, result, size) for rank in ranks]
        self._swap(sends, [(ranks[rail], self._result(rail, 0), size) for rail, size in enumerate(sizes)])

    def _restore(self) -> None:
        """Restore all results into their targets."""
        unpacks: list[Piece] = []
        for rail, (piece, parts) in enumerate(zip(self._pieces, self._parts, strict=True)):
            room = self._rooms[rail]
            for host, part in enumerate(parts):
                targets = self._operation.targets.part(part)
                if single(targets):
                    out = targets[0].address
                else:
                    assert room is not None
                    out = self._at(room, (part.start - piece.start) * ITEMSIZE)
                    found = packing(targets, out)
                    unpacks += [Piece(target, source, count) for source, target, count in found if source]
                self._add_up([Addend(self._result(rail, host))], size_of(part), out)
        self._copy(unpacks, 1.0)
