"""The timelines that this process records itself, because its environment or the script asks for one."""

from __future__ import annotations

from collections.abc import Callable

from distrun.contract.settings import EVENTS, Settings
from distrun.contract.topology import Topology
from distrun.errors import UsageError
from distrun.tracing import recording
from distrun.tracing.horovod_timeline.writer import HorovodTimeline
from distrun.tracing.parts.recorder import Recorder

_recorder: Recorder | None = None
_horovods: HorovodTimeline | None = None


def begin(chosen: Settings, topology: Topology) -> None:
    """Start recording, unless a recording is in progress.

    Raises:
        UsageError: the file cannot be written, or events are not recorded.
    """
    global _recorder
    if _recorder is not None:
        return
    _check_events()
    _recorder = Recorder(chosen.timeline_options(), topology.rank, topology.hostname)


def is_recording() -> bool:
    """Whether a timeline is being recorded."""
    return _recorder is not None


def end() -> None:
    """Stop recording and get the timeline written, if one was being recorded."""
    global _recorder
    recorder, _recorder = _recorder, None
    if recorder is not None:
        recorder.stop()


def begin_horovods(file: str, mark_cycles: bool, library: str, is_first: Callable[[], bool]) -> None:
    """Let rank 0 write a timeline in Horovod's format. It replaces one that is being written. See `HorovodTimeline`.

    Raises:
        UsageError: the file cannot be written, or events are not recorded.
    """
    global _horovods
    _check_events()
    end_horovods()
    _horovods = HorovodTimeline(file, mark_cycles, library, is_first)


def end_horovods() -> None:
    """Complete the timeline in Horovod's format, if it is being written."""
    global _horovods
    timeline, _horovods = _horovods, None
    if timeline is not None:
        timeline.end()


def _check_events() -> None:
    if recording.ring is None:
        raise UsageError(f"a timeline needs events, which {EVENTS}=0 leaves out: unset it")
