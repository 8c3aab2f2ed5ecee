# ruff: noqa: N802, N803
"""CUDA's runtime functions, with cupy's names and signatures."""

from __future__ import annotations

from typing import Any

from simulator import blocks, capture, errors, machine, streams
from simulator.errors import CUDARuntimeError
from simulator.machine import integer
from simulator.recorder import record
from simulator.streams import Operation

memcpyHostToHost, memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice, memcpyDefault = range(5)  # noqa: N816
streamDefault, streamNonBlocking = 0, 1  # noqa: N816
streamLegacy, streamPerThread = 1, 2  # noqa: N816
eventDefault, eventBlockingSync, eventDisableTiming, eventInterprocess = 0, 1, 2, 4  # noqa: N816

_TOTAL = 8 << 30

# Devices --------------------------------------------------------------------------------------------------------------


def getDevice() -> int:
    return machine.current_device()


def setDevice(device: int) -> None:
    record("setDevice", device=device)
    machine.set_device(integer(device))


def getDeviceCount() -> int:
    count = len(machine.visible())
    if not count:
        raise CUDARuntimeError(100)
    return count


def deviceGetPCIBusId(device: int) -> str:
    return machine.bus_id(integer(device))


def getDeviceProperties(device: int) -> dict[str, object]:
    return {"name": b"Simulated GPU", "uuid": machine.uuid(integer(device))}


def deviceCanAccessPeer(device: int, peerDevice: int) -> int:
    return int(machine.can_access(integer(device), integer(peerDevice)))


def deviceEnablePeerAccess(peerDevice: int) -> None:
    record("deviceEnablePeerAccess", peer=peerDevice)
    machine.enable_access(integer(peerDevice))


def deviceSynchronize() -> None:
    record("deviceSynchronize")
    device = machine.touch()
    capture.check_unsafe()
    for stream in {stream for stream, _ in streams.pending() if stream.device == device}:
        stream.synchronize()


def memGetInfo() -> tuple[int, int]:
    machine.touch()
    return _TOTAL - blocks.allocated(), _TOTAL


# Memory ---------------------------------------------------------------------------------------------------------------


def memcpyAsync(dst: int, src: int, size: int, kind: int, stream: int) -> None:
    dst, src, nbytes = integer(dst), integer(src), machine.size(size)
    record("memcpyAsync", integer(stream), target=dst, source=src, nbytes=nbytes)
    if integer(kind) not in range(5):
        raise CUDARuntimeError(errors.INVALID_VALUE)
    queue = streams.stream_of(integer(stream))
    queue.queue(Operation("a copy", lambda: lambda: blocks.move(dst, src, nbytes), [(src, nbytes)], [(dst, nbytes)]))


def memcpyPeerAsync(dst: int, dstDevice: int, src: int, srcDevice: int, size: int, stream: int) -> None:
    dst, src, nbytes, pair = integer(dst), integer(src), machine.size(size), (integer(srcDevice), integer(dstDevice))
    record("memcpyPeerAsync", integer(stream), target=dst, source=src, nbytes=nbytes)
    if not set(pair) <= set(range(len(machine.visible()))):
        raise CUDARuntimeError(errors.INVALID_DEVICE)
    for address, device in zip((src, dst), pair, strict=True):
        block = blocks.find(address)
        if block is not None and (block.stream is None or block.stream.device != device):
            raise CUDARuntimeError(errors.INVALID_VALUE)
    is_broken = machine.is_listed("SIMULATED_GPU_PEERS_BROKEN", *pair)

    def copy() -> None:
        blocks.move(dst, src, nbytes)
        if is_broken:
            blocks.fill(dst, 0, nbytes // 2)

    queue = streams.stream_of(integer(stream))
    queue.queue(Operation("a copy between GPUs", lambda: copy, [(src, nbytes)], [(dst, nbytes)]))


def memsetAsync(ptr: int, value: int, size: int, stream: int) -> None:
    ptr, value, nbytes = integer(ptr), integer(value), machine.size(size)
    record("memsetAsync", integer(stream), target=ptr, value=value, nbytes=nbytes)
    queue = streams.stream_of(integer(stream))
    queue.queue(Operation("filling", lambda: lambda: blocks.fill(ptr, value, nbytes), [], [(ptr, nbytes)]))


# Streams --------------------------------------------------------------------------------------------------------------


def streamCreateWithPriority(flags: int, priority: int) -> int:
    integer(priority)
    stream = streams.create_stream(blocking=not integer(flags) & streamNonBlocking)
    record("streamCreateWithPriority", stream, flags=flags)
    return stream


def streamDestroy(stream: int) -> None:
    streams.destroy_stream(integer(stream))


def streamSynchronize(stream: int) -> None:
    record("streamSynchronize", integer(stream))
    queue = streams.stream_of(integer(stream))
    capture.check_unsafe()
    queue.synchronize()
    machine.touch()


def streamQuery(stream: int) -> int:
    record("streamQuery", integer(stream))
    queue = streams.stream_of(integer(stream))
    return capture.unsafe() or (600 if queue.pending else 0)


def streamWaitEvent(stream: int, event: int, flags: int = 0) -> None:
    record("streamWaitEvent", integer(stream), event=event)
    queue, waited = streams.stream_of(integer(stream)), streams.event_of(integer(event))
    integer(flags)
    if waited.record is not None:
        queue.wait(waited.record)


def streamIsCapturing(stream: int) -> bool:
    record("streamIsCapturing", integer(stream))
    return capture.is_capturing(integer(stream))


# Events ---------------------------------------------------------------------------------------------------------------


def eventCreateWithFlags(flags: int) -> int:
    return streams.create_event(is_timed=not integer(flags) & eventDisableTiming)


def eventDestroy(event: int) -> None:
    streams.destroy_event(integer(event))


def eventRecord(event: int, stream: int) -> None:
    record("eventRecord", integer(stream), event=event)
    queue, recorded = streams.stream_of(integer(stream)), streams.event_of(integer(event))
    recorded.record = queue.record()


def eventQuery(event: int) -> int:
    """Return the status itself, as cupy does, and raise nothing."""
    record("eventQuery", event=event)
    number = integer(event)
    try:
        asked = streams.event_of(number)
    except CUDARuntimeError as error:
        return error.status
    return capture.unsafe() or streams.query(asked.record)


def eventSynchronize(event: int) -> None:
    record("eventSynchronize", event=event)
    asked: Any = streams.event_of(integer(event)).record
    capture.check_unsafe()
    if asked is not None:
        if asked.capture is not None:
            raise CUDARuntimeError(errors.CAPTURED_EVENT)
        asked.wait()
    machine.touch()


def eventElapsedTime(start: int, end: int) -> float:
    events = [streams.event_of(integer(event)) for event in (start, end)]
    records = [event.record for event in events if event.is_timed]
    if len(records) < 2 or None in records:
        raise CUDARuntimeError(errors.INVALID_HANDLE)
    for found in records:
        if status := streams.query(found):
            raise CUDARuntimeError(status)
    first, last = [found.time for found in records if found is not None]
    return (last - first) * 1e3
