"""The exchange: an allreduce in which every element travels quantised between hosts, once each way.

It does what the host backend does (`HierarchicalBackend`, `algorithms.direct`), with the same parts, order of summation
and roundings, so that its bits are those of arrays in the hosts' memory wherever those are exchanged directly and in
one piece:

1. Each rail has an equal share of the elements. The ranks of a host send the rank of each rail their values of its
   share, in float32, which adds them up.
2. Of the share, each host owns a part. A rank quantises its sums of the other hosts' parts, and sends them to those.
3. The owner adds up, in float32 and in the order of the hosts, what has come and its own sum, which was never
   quantised. It quantises the result, and sends it to the other hosts.
4. The ranks of each rail pass all results on to the other ranks of their host, quantised as they are. Every rank, the
   owner too, restores them: so all hold the same bits.

All of it is sends and receives of the one communicator that the group has. A second one within each host could reduce
there by NCCL's own kernels, in an order that nobody knows, for about as many bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from distrun.runtime.backends.algorithms.base import divided
from distrun.runtime.gpu.fusion_memory import FusionMemory
from distrun.runtime.gpu.nccl.library import AnyCommunicator
from distrun.runtime.gpu.nccl.reduction import BYTES
from distrun.runtime.gpu.packing import FusionSlots, Location, Packer, Span, Tensor
from distrun.runtime.gpu.quantised.kernels import BITS, Kernels
from distrun.runtime.gpu.quantised.losses import DeviceLosses
from distrun.runtime.operations.feedback import Feedback
from distrun.runtime.operations.reduction import Average
from distrun.runtime.operations.request import Request
from distrun.runtime.operations.wire import SMALL
from distrun.runtime.transport.host_layout import HostLayout
from distrun.tensor_fusion.device_packing import Piece
from distrun.tensor_fusion.device_quantisation import PIECES, Addend, Source, nbytes

MOST_AT_ONCE = 1 << 23
"""Elements that are exchanged at a time: a bound for the memory in between, about three times theirs in float32."""

_ITEMSIZE = 4  # of float32
_FLOAT32 = "float32"


Transfer = tuple[int, int, int]
"""A rank of the group, an address, and the bytes there."""


@dataclass(frozen=True)
class Operation:
    """An allreduce of float32 numbers."""

    sources: Sequence[Source]
    """Where they lie, in order. Zeros stand for those of small tensors, which travel another way."""
    targets: Sequence[Source]
    """Where the results go, with zeros in the same places."""
    wire: str
    """The type on the wire."""
    prescale: float
    factor: float
    """The number by which sums are multiplied."""

    @classmethod
    def of(cls, tensors: Sequence[Tensor], request: Request, wire: str, ranks: int) -> Operation:
        """Return the operation that a request asks `ranks` ranks for."""

        def places(spans: Iterable[list[Span]]) -> list[Source]:
            found: list[Source] = []
            for tensor, parts in zip(tensors, spans, strict=True):
                found += [Source(0, tensor.size)] if tensor.size < SMALL else [Source(*part) for part in parts]
            return found

        sources, targets = places(tensor.sources for tensor in tensors), places(tensor.targets for tensor in tensors)
        factor = request.postscale / (ranks if request.op is Average else 1)
        return cls(sources, targets, wire, request.prescale, factor)


class QuantisedExchange:
    """One rank's part in the exchanges of a group. One thread at a time calls, inside `driver.use()`."""

    def __init__(
        self,
        communicator: AnyCommunicator,
        packer: Packer,
        kernels: Kernels,
        fusion: FusionMemory,
        hosts: HostLayout,
    ) -> None:
        """`hosts`: which ranks of the group share a host; there are several hosts."""
        self.communicator = communicator
        self.packer = packer
        self.kernels = kernels
        self.fusion = fusion
        self.hosts = hosts

    def allreduce(
        self, tensors: Sequence[Tensor], request: Request, wire: str, feedback: Feedback | None, stream: int
    ) -> None:
        """Queue the allreduce of those tensors that are large.

        Args:
            tensors: all of the operation.
            request: a sum or an average.
            wire: the type on the wire.
            feedback: makes up for what was lost the last time.
            stream: on which to queue.

        Raises:
            NcclError: NCCL failed.
            CollectiveError: a kernel could not be compiled or launched.
        """
        hosts, operation = self.hosts, Operation.of(tensors, request, wire, self.communicator.size)
        count = sum(source.count for source in operation.sources)
        shares = divided(slice(0, count), hosts.rails)
        if not hosts.has_rail:
            feedback = None  # this rank quantises nothing
        if feedback is not None:
            self._begin(feedback, shares[hosts.position], operation, stream)
        number = -(-count // MOST_AT_ONCE)
        for pieces in zip(*(divided(share, number) for share in shares), strict=True):
            _Step(self, operation, feedback, pieces, stream).queue()
        if feedback is not None:
            feedback.now.written = self.packer.driver.record(stream)

    def _begin(self, feedback: Feedback, share: slice, operation: Operation, stream: int) -> None:
        unit = 1 / operation.prescale
        feedback.begin(
            *(self, share.start, _size(share), (unit, unit / operation.factor)),
            lambda count: DeviceLosses(self.packer, count, stream),
        )


class _Step:
    """The exchange of some elements of each rail's share."""

    def __init__(
        self,
        exchange: QuantisedExchange,
        operation: Operation,
        feedback: Feedback | None,
        pieces: Sequence[slice],
        stream: int,
    ) -> None:
        """`pieces`: the elements, by rail; `feedback`: of this rank's rail, if it has one."""
        self._communicator, self._packer, self._kernels = exchange.communicator, exchange.packer, exchange.kernels
        self._fusion, self._hosts, self._stream = exchange.fusion, exchange.hosts, stream
        self._operation, self._feedback = operation, feedback
        self._pieces = pieces
        self._parts = [divided(piece, self._hosts.count) for piece in pieces]
        """The part of each host, by rail, then by host."""
        self._is_alone = len(self._hosts.local_ranks) == 1
        self._slots = slots = FusionSlots()
        self._results = [slots.add(self._nbytes(*parts)) for parts in self._parts]
        # Where the values of each rail's piece are packed, and later, when they are not needed any more, its results.
        self._rooms = [slots.add(_size(piece) * _ITEMSIZE) if self._needs_room(piece) else None for piece in pieces]
        if self._hosts.has_rail:
            self._allot(pieces[self._hosts.position], self._parts[self._hosts.position])

    def _needs_room(self, piece: slice) -> bool:
        sources, targets = (cut(each, piece) for each in (self._operation.sources, self._operation.targets))
        return not (_single(sources) and _single(targets) and self._operation.prescale == 1.0)

    def _allot(self, piece: slice, parts: Sequence[slice]) -> None:
        """Allot what a rank with a rail needs."""
        slots, own = self._slots, parts[self._hosts.own]
        self._sent = slots.add(self._nbytes(*parts))
        self._received = slots.add(self._nbytes(own) * len(parts))
        self._contribution, self._sum = (slots.add(_size(own) * _ITEMSIZE) for _ in range(2))
        if not self._is_alone:
            self._values = slots.add(_size(piece) * _ITEMSIZE * len(self._hosts.local_ranks))

    def _nbytes(self, *parts: slice) -> int:
        """Return the bytes of quantised parts."""
        return sum(nbytes(_size(part), BITS[self._operation.wire]) for part in parts)

    def _at(self, slot: Location, offset: int = 0) -> int:
        return slot.pointer(self._base) + offset

    def _result(self, rail: int, host: int) -> int:
        """Return the address of the result of a host's part, quantised."""
        return self._at(self._results[rail], self._nbytes(*self._parts[rail][:host]))

    def queue(self) -> None:
        """Queue all of it."""
        self._base = self._fusion.pointer(self._slots.nbytes, self._stream)
        values, factor = self._within_host()
        if self._hosts.has_rail:
            self._between_hosts(values, factor)
        if not self._is_alone:
            self._pass_on()
        self._restore()

    # Within the host -------------------------------------------------------------------------------------------------

    def _within_host(self) -> tuple[list[Source], float]:
        """Return this host's sums of our rail's piece, and what they are still to be multiplied by."""
        sources = [cut(self._operation.sources, piece) for piece in self._pieces]
        if self._is_alone and len(sources[0]) <= PIECES:
            return sources[0], self._operation.prescale
        addresses: list[int] = []
        packs: list[Piece] = []
        for found, room in zip(sources, self._rooms, strict=True):
            addresses.append(self._gathered(found, room, packs))
        self._copy(packs, self._operation.prescale)
        if self._is_alone:
            return [Source(addresses[0], _size(self._pieces[0]))], 1.0
        return self._summed(addresses), 1.0

    def _gathered(self, sources: Sequence[Source], room: Location | None, packs: list[Piece]) -> int:
        """Return where numbers lie one after the other, multiplied: where they are, or in `room`, into which `packs`
        will copy them."""
        if _single(sources) and self._operation.prescale == 1.0:
            return sources[0].address
        assert room is not None
        packs += _pieces(sources, self._at(room))
        return self._at(room)

    def _summed(self, addresses: Sequence[int]) -> list[Source]:
        """Send the ranks of this host their values, by rail, and add up those of our own rail, if we have one."""
        hosts, ranks = self._hosts, self._hosts.local_ranks
        sends = [
            (ranks[rail], address, _size(piece) * _ITEMSIZE)
            for rail, (address, piece) in enumerate(zip(addresses, self._pieces, strict=True))
        ]
        if not hosts.has_rail:
            self._swap(sends, [])
            return []
        count = _size(self._pieces[hosts.position])
        rows = [self._at(self._values, place * count * _ITEMSIZE) for place in range(len(ranks))]
        self._swap(sends, [(rank, row, count * _ITEMSIZE) for rank, row in zip(ranks, rows, strict=True)])
        total = rows[hosts.position]
        addends = [Addend(addresses[place] if place == hosts.position else row, True) for place, row in enumerate(rows)]
        self._add_up(addends, count, total)
        return [Source(total, count)]

    def _pass_on(self) -> None:
        """Give the other ranks of this host the results that our rail has, and get those of the other rails."""
        hosts, ranks, sends = self._hosts, self._hosts.local_ranks, []
        sizes = [self._nbytes(*parts) for parts in self._parts]
        if hosts.has_rail:
            result, size = self._result(hosts.position, 0), sizes[hosts.position]
            sends = [(rank, result, size) for rank in ranks]
        self._swap(sends, [(ranks[rail], self._result(rail, 0), size) for rail, size in enumerate(sizes)])

    # Between hosts ---------------------------------------------------------------------------------------------------

    def _between_hosts(self, values: Sequence[Source], factor: float) -> None:
        """Exchange our rail's piece with the other hosts: their parts, then the results."""
        hosts, rail = self._hosts, self._hosts.position
        piece, parts = self._pieces[rail], self._parts[rail]
        own, size = parts[hosts.own], self._nbytes(parts[hosts.own])
        sends, rows = [], [self._at(self._received, host * size) for host in range(hosts.count)]
        for host in hosts.others:
            sent = self._at(self._sent, self._nbytes(*parts[:host]))
            sends.append((hosts.peer(host), sent, self._nbytes(parts[host])))
            self._quantise(cut(values, parts[host], piece.start), parts[host], sent, factor)
        addends = [Addend(row) for row in rows]
        addends[hosts.own] = Addend(self._own_values(cut(values, own, piece.start), factor), True)
        self._swap(sends, [(hosts.peer(host), rows[host], size) for host in hosts.others])
        total, result = self._at(self._sum), self._result(rail, hosts.own)
        self._add_up(addends, _size(own), total, self._operation.factor)
        self._quantise([Source(total, _size(own))], own, result, 1.0, are_results=True)
        self._swap(
            [(hosts.peer(host), result, size) for host in hosts.others],
            [(hosts.peer(host), self._result(rail, host), self._nbytes(parts[host])) for host in hosts.others],
        )

    def _own_values(self, values: Sequence[Source], factor: float) -> int:
        """Return where this host's values of its own part lie, as they are added up."""
        if _single(values) and factor == 1.0:
            return values[0].address
        self._copy(_pieces(values, self._at(self._contribution)), factor)
        return self._at(self._contribution)

    def _restore(self) -> None:
        """Restore all results where they belong."""
        unpacks: list[Piece] = []
        for rail, (piece, parts) in enumerate(zip(self._pieces, self._parts, strict=True)):
            room = self._rooms[rail]
            for host, part in enumerate(parts):
                targets = cut(self._operation.targets, part)
                if _single(targets):
                    out = targets[0].address
                else:
                    assert room is not None
                    out = self._at(room, (part.start - piece.start) * _ITEMSIZE)
                    found = _pieces(targets, out)
                    unpacks += [Piece(target, source, count) for source, target, count in found if source]
                self._add_up([Addend(self._result(rail, host))], _size(part), out)
        self._copy(unpacks, 1.0)

    # What is queued --------------------------------------------------------------------------------------------------

    def _quantise(
        self, values: Sequence[Source], part: slice, raw: int, factor: float, are_results: bool = False
    ) -> None:
        if not values:
            return
        losses = 0, 0
        if self._feedback is not None:
            losses = self._feedback.losses(part.start, _size(part), are_results)
        self._kernels.quantise(self._operation.wire, values, raw, factor, losses, self._stream)

    def _add_up(self, addends: Sequence[Addend], count: int, out: int, factor: float = 1.0) -> None:
        if count:
            self._kernels.add_up(self._operation.wire, addends, count, out, factor, self._stream)

    def _copy(self, pieces: Iterable[Piece], factor: float) -> None:
        if pieces := list(pieces):
            self._packer.copy(pieces, _FLOAT32, _FLOAT32, factor, self._stream)

    def _swap(self, sends: Sequence[Transfer], receives: Sequence[Transfer]) -> None:
        """Send and receive at once; what a rank would send to itself is left out."""
        communicator = self._communicator
        with communicator.group():
            for peer, address, size in sends:
                if size and peer != communicator.rank:
                    communicator.send(address, size, BYTES, peer, self._stream)
            for peer, address, size in receives:
                if size and peer != communicator.rank:
                    communicator.recv(address, size, BYTES, peer, self._stream)


# Numbers in several places ------------------------------------------------------------------------------------------


def cut(sources: Sequence[Source], part: slice, start: int = 0) -> list[Source]:
    """Return some of the elements of `sources`, whose first one has the number `start`; neighbours become one."""
    found: list[Source] = []
    for source in sources:
        first, stop = max(part.start, start), min(part.stop, start + source.count)
        if first < stop:
            address = source.address and source.address + (first - start) * _ITEMSIZE
            last = found[-1] if found else None
            if last is not None and address == (last.address and last.address + last.count * _ITEMSIZE):
                found[-1] = Source(last.address, last.count + stop - first)
            else:
                found.append(Source(address, stop - first))
        start += source.count
    return found


def _single(sources: Sequence[Source]) -> bool:
    """Return whether elements lie in one place; zeros do not."""
    return len(sources) == 1 and sources[0].address != 0


def _pieces(sources: Sequence[Source], target: int) -> Iterator[Piece]:
    """Yield what copies elements to one place."""
    for source in sources:
        yield Piece(source.address, target, source.count)
        target += source.count * _ITEMSIZE


def _size(part: slice) -> int:
    count: int = part.stop - part.start
    return count
