"""An interrupt anywhere in a turn: it ends the turn, and every operation is done or failed."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from distrun.errors import JobAbortedError, MismatchError
from distrun.runtime.negotiation.decisions import Fail
from distrun.runtime.negotiation.messages import pack_decision


class InterruptAt:
    """Raises KeyboardInterrupt at the n-th call of a function of distrun in a turn.

    The interpreter looks for signals when it enters a function, so that is where an interrupt really comes.
    """

    def __init__(self, number: int) -> None:
        self._left = number
        self._is_in_turn = False
        self.where = ""

    def __enter__(self) -> InterruptAt:
        self._previous = sys.gettrace()
        sys.settrace(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._previous)

    def _look(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if "distrun/runtime" not in code.co_filename:
            return
        if not self._is_in_turn:
            self._is_in_turn = code.co_name == "_run_turn"
            return
        self._left -= 1
        if self._left == 0:
            self.where = code.co_name
            sys.settrace(self._previous)
            raise KeyboardInterrupt


def test_wherever_a_turn_is_interrupted_it_ends_and_no_operation_is_left(make_rank):
    places = []
    while not places or places[-1]:
        rank = make_rank()
        new, _, unnamed = handles = [rank.engine.run(rank.handle(name)) for name in ("new", "refused", None)]
        rank.decide(new)
        rank.control.inbox.append((0, pack_decision(Fail((0, "refused"), "the ranks disagree", (1,)))))
        rank.decide(unnamed)
        with InterruptAt(len(places) + 1) as interrupt:
            try:
                unnamed.wait()
            except (KeyboardInterrupt, JobAbortedError):
                assert interrupt.where
        places.append(interrupt.where)
        assert rank.turn == "idle", interrupt.where
        assert not rank.engine._state.is_ours(), interrupt.where
        for handle in handles:
            assert handle.done, interrupt.where
            assert handle.error is None or isinstance(handle.error, (JobAbortedError, MismatchError)), interrupt.where
    assert "decide_new" in places
    assert "complete" in places
