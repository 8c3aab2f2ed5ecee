"""Reporting the stacks of this process to its agent, without a debugger, by a thread that sleeps anyway.

The process that starts a rank passes it an eventfd with its ring. The progress thread, or any thread that waits for
peers, sleeps until one of several descriptors wakes it, and this is one of them. Then it writes the stacks of all
threads to the end of the ring.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
import traceback
from contextlib import suppress

from distrun.tracing.layout import ANSWER, ANSWER_LENGTH, ANSWERED, LONGEST_ANSWER

_DEEPEST = 40  # the most frames that are reported for a thread


def stacks() -> str:
    """Return the stacks of all threads as in a traceback, the main thread's first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main, own = threading.main_thread().ident, threading.get_ident()
    frames = sys._current_frames()
    parts = []
    for ident in sorted(frames, key=lambda ident: (ident != main, ident)):
        if ident == own and ident != main:
            continue  # it is busy with this answer
        name = "main thread" if ident == main else f"thread {names.get(ident, ident)}"
        frames_there = [
            frame for frame in traceback.extract_stack(frames[ident]) if "importlib._" not in frame.filename
        ]
        stack = "".join(traceback.format_list(frames_there[-_DEEPEST:])).rstrip()
        parts.append(f"{name}:\n{stack}")
    return "\n".join(parts)


def answer(fd: int, memory: mmap.mmap) -> None:
    """Write the stacks into a ring's memory, if the agent has asked for them through the eventfd."""
    with suppress(OSError):  # BlockingIOError: another thread was faster
        os.eventfd_read(fd)
        raw = stacks().encode(errors="replace")[:LONGEST_ANSWER]
        memory[ANSWER : ANSWER + len(raw)] = raw
        memory[ANSWER_LENGTH : ANSWER_LENGTH + 4] = len(raw).to_bytes(4, "little")
        count = int.from_bytes(memory[ANSWERED : ANSWERED + 4], "little") + 1
        memory[ANSWERED : ANSWERED + 4] = (count & 0xFFFFFFFF).to_bytes(4, "little")


def answers(memory: mmap.mmap | memoryview) -> int:
    """Return the number of times that a rank has answered."""
    return int.from_bytes(memory[ANSWERED : ANSWERED + 4], "little")


def last_answer(memory: mmap.mmap | memoryview) -> str:
    """Return the last answer of a rank."""
    length = int.from_bytes(memory[ANSWER_LENGTH : ANSWER_LENGTH + 4], "little")
    return bytes(memory[ANSWER : ANSWER + min(length, LONGEST_ANSWER)]).decode(errors="replace")
