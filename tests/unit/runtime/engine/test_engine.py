"""The engine by histories of events: which thread makes progress, and what becomes of operations when it cannot."""

from __future__ import annotations

import threading

import pytest
from in_process.calls import DEADLINE, started

from distrun.errors import JobAbortedError, UsageError
from distrun.runtime.engine.progress_thread import LARGE
from distrun.runtime.negotiation import messages
from distrun.runtime.operations import waking_clock
from distrun.runtime.transport.shared_memory.segment import FAILED, LEFT

SHUT_DOWN = "distrun.shutdown() was called"


def held_turn(rank, in_thread, wait, first, *then):
    """Another thread waits, and is in the first event of its turn when this returns. `then` are the further ones."""
    has_turn = threading.Event()

    def begin() -> None:
        has_turn.set()
        first()

    rank.group.history += [begin, *then]
    waiting = in_thread(wait)
    assert has_turn.wait(DEADLINE)
    return waiting


# Whose turn it is -----------------------------------------------------------------------------------------------------


def test_a_thread_that_waits_makes_the_progress_itself(rank):
    handle = rank.engine.run(rank.handle("a"))
    turns = []
    rank.group.history += [lambda: turns.append(rank.turn), lambda: rank.decide(handle)]
    handle.wait()
    assert turns == ["caller"]
    assert rank.backend.executed == ["allreduce 'a'"]
    assert (rank.turn, rank.rings) == ("idle", 0)


def test_whoever_asked_for_it_is_called_when_an_operation_is_done_or_has_failed(rank):
    called = []
    done, failed = rank.handle("a"), rank.handle("b")
    done.when_done = failed.when_done = lambda handle: called.append((handle, handle.done))
    rank.engine.run(done)
    rank.group.history += [lambda: rank.decide(done)]
    done.wait()
    assert called == [(done, True)]
    rank.engine.submit(failed)
    rank.engine.fail("it is over")
    assert called == [(done, True), (failed, True)]
    assert failed.error is not None


def test_a_rank_that_is_stopped_on_its_way_to_sleep_does_not_count_the_stop(rank, monkeypatch):
    stopped = [0.0]
    monkeypatch.setattr(waking_clock, "_stopped", 0.0)
    monkeypatch.setattr(waking_clock.time, "monotonic", lambda: 100.0 + stopped[0])
    progress = rank.engine._negotiator.progress

    def stop_and_progress():
        if not stopped[0]:
            stopped[0] = 30.0
        progress()

    monkeypatch.setattr(rank.engine._negotiator, "progress", stop_and_progress)
    handle = rank.engine.run(rank.handle("a"))
    rank.group.history += [lambda: rank.decide(handle)]
    handle.wait()
    assert waking_clock.now() == 100.0


def test_where_ranks_keep_all_cores_busy_submitting_wakes_nobody_but_a_nudge_and_poll_do(rank):
    rank.engine.submit(rank.handle("a"))
    assert rank.rings == 0
    rank.group.is_nudged = True
    handle = rank.engine.submit(rank.handle("b"))
    assert rank.rings == 1
    assert not handle.poll()
    assert rank.rings == 2


def test_where_cores_are_spare_submitting_wakes_the_progress_thread(rank):
    rank.engine._progress_thread.wakes_on_submit = True
    rank.engine.submit(rank.handle("a"))
    assert rank.rings == 1


def test_what_others_submit_while_one_waits_is_left_to_the_progress_thread(rank):
    rank.engine._progress_thread.wakes_on_submit = True
    handle = rank.engine.run(rank.handle("a"))
    rank.group.history += [lambda: rank.engine.submit(rank.handle("b")), lambda: rank.decide(handle)]
    handle.wait()
    assert rank.group.bell.rings == 1  # the thread that had the turn was told
    assert rank.rings == 1  # and rang as it left


def test_the_progress_thread_serves_what_nobody_waits_for_and_sleeps(rank):
    done = threading.Event()
    handle = rank.engine.submit(rank.handle("a"))
    turns = []
    rank.group.history += [lambda: turns.append(rank.turn), lambda: rank.decide(handle)]
    rank.group.is_nudged = True
    rank.group.thread_history += [done.set]
    rank.start()
    assert done.wait(DEADLINE)
    assert handle.done
    assert turns == ["progress thread"]
    assert not rank.group.is_nudged


def test_a_burst_comes_together_while_the_progress_thread_lingers(rank):
    """Hundreds of operations, submitted in a row by a thread that waits for none, make one message."""
    known = rank.engine.run(rank.handle(None))
    rank.decide(known, cache_id=0)
    known.wait()
    del rank.control.sent[:]
    rank.engine._progress_thread.wakes_on_submit = True
    handles = []

    def submit_some() -> None:
        handles.extend(rank.engine.submit(rank.handle(None)) for _ in range(100))

    submit_some()
    done = threading.Event()
    rank.pauses += [submit_some] * 4
    rank.group.history += [lambda: rank.control.inbox.append((0, messages.pack_ids(messages.EXECUTE, [0] * 500)))]
    rank.group.thread_history += [done.set]
    rank.start()
    assert done.wait(DEADLINE)
    assert rank.control.sent == [(0, messages.pack_ids(messages.CACHE_IDS, [0] * 500))]
    assert len(handles) == 500
    assert all(handle.done and handle.error is None for handle in handles)


def test_a_large_tensor_is_not_lingered_for(rank):
    rank.engine._progress_thread.wakes_on_submit = True
    handle = rank.engine.submit(rank.handle("a", LARGE // 4))
    rank.pauses += [lambda: pytest.fail("it lingered")]
    rank.group.history += [lambda: rank.decide(handle)]
    rank.engine._progress_thread.serve_once()
    assert handle.done


def test_a_burst_whose_submitter_waits_is_served_by_it_at_once_while_the_progress_thread_lingers(rank):
    rank.engine._progress_thread.wakes_on_submit = True
    handle = rank.engine.submit(rank.handle("a"))
    rank.group.history += [lambda: rank.decide(handle)]
    rank.pauses += [handle.wait]
    rank.engine._progress_thread.serve_once()
    assert rank.backend.executed == ["allreduce 'a'"]


def test_an_alarm_that_comes_while_a_caller_has_the_turn_is_looked_after_when_it_is_over(rank):
    """The caller may have looked at the messages just before; nothing is under way here that would wake anybody."""
    rank.control.is_across_hosts = rank.engine._negotiator.is_across_hosts = True
    handle = rank.engine.run(rank.handle("a"))
    rank.control.alarms += [True]
    rank.group.history += [rank.engine._progress_thread.serve_once, lambda: rank.decide(handle)]
    handle.wait()
    assert rank.rings == 1
    question = (0, messages.QUESTION)
    rank.control.inbox.append(question)
    assert rank.engine._progress_thread.has_work()
    rank.engine._progress_thread.serve_once()
    assert rank.control.sent[-1][1].startswith(messages.ANSWER)
    assert not rank.engine._progress_thread.has_work()


# A signal handler, while its own thread makes progress ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["b", None])
def test_a_signal_handler_may_submit_while_its_own_thread_has_the_turn(rank, name):
    handle, more = rank.engine.run(rank.handle("a")), rank.handle(name)
    rank.group.history += [lambda: rank.engine.submit(more), lambda: rank.decide(more, handle)]
    handle.wait()
    more.wait()
    assert rank.group.bell.rings == 1
    assert len(rank.backend.executed) == 2


def test_a_signal_handler_must_not_wait_while_its_own_thread_has_the_turn_and_is_told_so(rank):
    handle, more = rank.engine.run(rank.handle("a")), rank.handle("b")

    def handler() -> None:
        rank.engine.submit(more)
        with pytest.raises(
            UsageError, match="allreduce 'b' cannot be waited for here: a signal handler has interrupted"
        ):
            more.wait()

    rank.group.history += [handler, lambda: rank.decide(handle, more)]
    handle.wait()
    assert more.done
    assert rank.turn == "idle"


def test_a_signal_handler_that_shuts_down_lets_the_thread_it_has_interrupted_end_its_turn(rank):
    rank.start()
    handle = rank.engine.run(rank.handle("a"))
    rank.group.history += [lambda: rank.engine.shutdown("it has had enough")]
    with pytest.raises(JobAbortedError, match=r"^distrun\.shutdown\(\) was called$"):
        handle.wait()
    assert {state for state, _ in rank.group.announced} == {LEFT}
    assert {reason for _, reason in rank.group.announced} == {"it has had enough"}
    assert rank.turn == "idle"
    rank.engine._progress_thread.join(DEADLINE)
    assert not rank.engine._progress_thread.is_alive()
    with pytest.raises(JobAbortedError):
        rank.engine.submit(rank.handle("b"))


def test_a_signal_handler_between_taking_and_having_the_turn_may_use_it(rank, monkeypatch):
    """It comes after the lock is taken and before anything says so; what it waits for is done when it returns."""
    handle, more = rank.engine.run(rank.handle("a")), rank.handle("b")
    run_turn = rank.engine._run_turn

    def interrupted(waited_for) -> None:
        monkeypatch.undo()
        state = rank.engine._state
        turn, state.turn = state.turn, type(state.turn).IDLE  # as it was one line before
        rank.decide(more)
        rank.engine.run(more).wait()
        state.turn = turn
        run_turn(waited_for)

    monkeypatch.setattr(rank.engine, "_run_turn", interrupted)
    rank.group.history += [lambda: rank.decide(handle)]
    handle.wait()
    assert (rank.backend.executed, rank.turn) == (["allreduce 'b'", "allreduce 'a'"], "idle")


def interrupt() -> None:
    raise KeyboardInterrupt("Ctrl-C")


def test_an_interrupt_is_raised_and_fails_what_is_under_way(rank):
    handle, other = rank.engine.run(rank.handle("a")), rank.engine.submit(rank.handle("b"))

    rank.group.history += [interrupt]
    with pytest.raises(KeyboardInterrupt):
        handle.wait()
    reason = "rank 1 was interrupted while communicating: KeyboardInterrupt: Ctrl-C"
    assert rank.failure_of(handle) == rank.failure_of(other) == reason
    assert (rank.group.announced, rank.turn) == ([(FAILED, reason)], "idle")
    with pytest.raises(JobAbortedError, match="KeyboardInterrupt"):
        rank.engine.submit(rank.handle("c"))


def test_an_interrupt_in_the_middle_of_a_batch_fails_it_and_the_batches_behind_it(rank):
    handles = [rank.engine.submit(rank.handle(name)) for name in ("a", "b", "c")]
    rank.decide(*handles)

    rank.backend.during += [lambda: None, interrupt]
    with pytest.raises(KeyboardInterrupt):
        handles[2].wait()
    assert handles[0].error is None
    assert "KeyboardInterrupt" in rank.failure_of(handles[1])
    assert "KeyboardInterrupt" in rank.failure_of(handles[2])


# A fork ---------------------------------------------------------------------------------------------------------------


def test_a_child_forked_by_a_signal_handler_ends_the_turn_of_the_thread_that_was_interrupted(rank):
    handle = rank.engine.run(rank.handle("a"))
    rank.group.history += [rank.engine.disown]
    with pytest.raises(JobAbortedError, match="a forked child of a rank is not a rank"):
        handle.wait()
    assert rank.turn == "idle"
    with pytest.raises(JobAbortedError, match="a forked child"):
        rank.engine.submit(rank.handle("b"))


def test_a_child_forked_while_another_thread_has_the_turn_does_not_wait_for_it(rank, in_thread):
    """The other thread does not exist in the child, but what it held does."""
    handle = rank.engine.run(rank.handle("a"))
    may_end = threading.Event()

    def in_the_parent() -> None:
        assert may_end.wait(DEADLINE)
        rank.decide(handle)

    parents = held_turn(rank, in_thread, handle.wait, in_the_parent)
    state, parent = rank.engine._state, dict(vars(rank.engine._state))
    rank.engine.disown()
    assert rank.turn == "idle"
    with pytest.raises(JobAbortedError, match="a forked child"):
        handle.wait()
    assert rank.turn == "idle"
    vars(state).update(parent)  # the other thread's world, which a fork would have copied
    handle.done, handle.error = False, None
    rank.operations.pending[handle.key] = handle
    may_end.set()
    parents.result(DEADLINE)


# Shutdown -------------------------------------------------------------------------------------------------------------


def test_a_shutdown_ends_the_turn_of_a_thread_that_waits_and_then_closes_everything(rank, in_thread):
    rank.start()
    handle = rank.engine.run(rank.handle("a"))

    def wait() -> None:
        with pytest.raises(JobAbortedError, match=r"distrun\.shutdown\(\) was called"):
            handle.wait()

    held_turn(rank, in_thread, wait, rank.group.sleep_on_bell)
    assert rank.engine.shutdown("it is done") is None
    assert rank.group.announced[0] == (LEFT, "it is done")
    assert rank.backend.is_closed
    assert rank.group.is_closed


def test_a_shutdown_ends_the_turn_of_the_progress_thread(rank):
    handle = rank.engine.submit(rank.handle("a"))
    rank.group.is_nudged = True
    has_turn = threading.Event()
    rank.group.history += [has_turn.set, rank.group.sleep_on_bell]
    rank.start()
    assert has_turn.wait(DEADLINE)
    assert rank.engine.shutdown() is None
    assert rank.failure_of(handle) == SHUT_DOWN
    assert rank.turn == "idle"


def test_what_is_submitted_while_a_shutdown_waits_for_the_progress_thread_fails(rank, in_thread):
    rank.start()
    handle = rank.handle("a")
    join = rank.engine._progress_thread.join

    def submit_first(timeout=None) -> None:
        with pytest.raises(JobAbortedError, match=r"distrun\.shutdown\(\)"):
            rank.engine.submit(handle)
        join(timeout)

    rank.engine._progress_thread.join = submit_first
    rank.engine.shutdown()


# An abort, between two steps of a submission --------------------------------------------------------------------------


def fail_in_another_thread(rank, in_thread, reason="rank 0 is gone") -> None:
    """Another thread takes its turn, finds that the job has failed, and gives the turn back."""

    def lose() -> None:
        rank.control.is_across_hosts = rank.engine._negotiator.is_across_hosts = True
        rank.control.lost = reason
        assert rank.engine._state.take(type(rank.engine._state.turn).PROGRESS_THREAD)
        rank.engine._run_turn(None)

    in_thread(lose).result(DEADLINE)


@pytest.mark.parametrize("name", ["a", None])
@pytest.mark.parametrize("when", ["before it is entered", "after it is entered"])
@pytest.mark.parametrize("verb", ["submit", "run"])
def test_an_operation_that_is_entered_while_the_job_fails_fails_too(rank, in_thread, monkeypatch, name, when, verb):
    enter = rank.operations.enter

    def racing(handle) -> None:
        if when == "after it is entered":
            enter(handle)
        fail_in_another_thread(rank, in_thread)
        if when == "before it is entered":
            enter(handle)

    monkeypatch.setattr(rank.operations, "enter", racing)
    handle = getattr(rank.engine, verb)(rank.handle(name))
    assert handle.poll(), "nobody will ever fail it"
    assert "rank 0 is gone" in rank.failure_of(handle)
    assert rank.operations.is_empty


def test_an_operation_that_is_entered_between_a_failed_turn_and_its_end_fails_too(rank, in_thread, monkeypatch):
    """Its submitter sees the failure, does not get the turn, and relies on the thread that has it."""
    handle = rank.handle("a")
    state = rank.engine._state
    abort = rank.engine._failing.abort
    enter = rank.operations.enter
    entered, has_failed = threading.Event(), threading.Event()

    def late_enter(made) -> None:
        enter(made)
        entered.set()
        assert has_failed.wait(DEADLINE)

    monkeypatch.setattr(rank.operations, "enter", late_enter)
    submitter = in_thread(lambda: rank.engine.submit(handle))
    assert entered.wait(DEADLINE)

    def abort_and_submit(reason) -> None:  # all that was under way has failed, and the turn is not given back yet
        abort(reason)
        rank.operations.pending[handle.key] = handle
        handle.done, handle.error = False, None
        has_failed.set()
        submitter.result(DEADLINE)
        assert not handle.done

    monkeypatch.setattr(rank.engine._failing, "abort", abort_and_submit)
    assert state.take(type(state.turn).CALLER)
    rank.control.is_across_hosts = rank.engine._negotiator.is_across_hosts = True
    rank.control.lost = "rank 0 is gone"
    rank.engine._run_turn(None)
    assert "rank 0 is gone" in rank.failure_of(handle)
    assert rank.turn == "idle"


def test_an_operation_that_is_being_executed_is_not_failed_by_another_thread(rank, in_thread):
    """Its arrays are in use: only the thread that executes it may say that it is over."""
    handle = rank.engine.run(rank.handle("a"))
    rank.decide(handle)
    seen = []

    def die() -> None:
        rank.engine._failing.die(OSError("no more descriptors"))
        seen.append(handle.done)

    rank.backend.during += [lambda: in_thread(die).result(DEADLINE)]
    handle.wait()
    assert seen == [False]
    assert rank.backend.executed == ["allreduce 'a'"]
    with pytest.raises(JobAbortedError, match="no more descriptors"):
        rank.engine.submit(rank.handle("b"))


# A lost wake-up -------------------------------------------------------------------------------------------------------


def test_a_turn_that_ends_between_a_look_at_it_and_the_sleep_is_not_slept_through(rank, in_thread, monkeypatch):
    state = rank.engine._state
    monkeypatch.setattr("distrun.runtime.engine.state.RECHECK", DEADLINE)
    first, second = rank.engine.run(rank.handle("a")), rank.engine.run(rank.handle("b"))
    may_end = threading.Event()

    def hold() -> None:
        assert may_end.wait(DEADLINE)
        rank.decide(first)

    holder = held_turn(rank, in_thread, first.wait, hold)
    wait_for = state.wait_for

    def late(handle) -> bool:  # we have just seen that the turn is another thread's
        may_end.set()
        holder.result(DEADLINE)
        assert wait_for(handle), "it has slept for a minute"
        rank.group.history.append(lambda: rank.decide(second))
        return True

    monkeypatch.setattr(state, "wait_for", late)
    second.wait()
    assert second.error is None


def test_a_thread_that_sleeps_is_woken_when_its_operation_is_done_by_another_ones_turn(rank, in_thread, monkeypatch):
    monkeypatch.setattr("distrun.runtime.engine.state.RECHECK", DEADLINE)
    first, second = rank.engine.run(rank.handle("a")), rank.engine.run(rank.handle("b"))
    state = rank.engine._state
    is_done = threading.Event()

    def until_the_other_sleeps() -> None:
        with state._changed:  # free only when the other sleeps
            while not state.waiters:
                state._changed.wait(0.001)

    def check_second() -> None:
        assert is_done.wait(DEADLINE)
        rank.decide(first)

    held_turn(rank, in_thread, first.wait, until_the_other_sleeps, lambda: rank.decide(second), check_second)
    second.wait()
    assert rank.turn == "caller"
    is_done.set()


# The progress thread dies ---------------------------------------------------------------------------------------------


def fail(*_: object) -> None:
    raise OSError(24, "Too many open files")


REASON = "the progress thread of rank 1 failed: OSError: [Errno 24] Too many open files"


@pytest.mark.parametrize("where", ["asleep", "lingering", "hearing alarms", "looking after the GPU", "executing"])
def test_whatever_ends_the_progress_thread_fails_the_job_with_that_reason(rank, monkeypatch, caplog, where):
    rank.engine._progress_thread.wakes_on_submit = True
    handle = rank.engine.submit(rank.handle("a"))
    if where == "asleep":
        rank.engine._progress_thread.wakes_on_submit = False
        rank.group.thread_history += [fail]
    elif where == "lingering":
        rank.pauses += [fail]
    elif where == "hearing alarms":
        monkeypatch.setattr(rank.engine._negotiator, "hear_alarms", fail)
    elif where == "looking after the GPU":
        monkeypatch.setattr(type(rank.engine._gpu_monitor), "is_busy", True)
        monkeypatch.setattr(rank.engine._gpu_monitor, "check", fail)
    else:
        rank.decide(handle)
        rank.backend.during += [fail]
    is_over = threading.Event()
    monkeypatch.setattr(
        rank.engine._failing, "fail_what_is_left", after(rank.engine._failing.fail_what_is_left, is_over.set)
    )
    rank.start()
    assert is_over.wait(DEADLINE)
    if where == "executing":  # then the thread's turn has still to end
        with pytest.raises(JobAbortedError):
            handle.wait()
    else:
        assert rank.failure_of(handle) == REASON
    assert (FAILED, REASON) in rank.group.announced
    assert REASON in caplog.text
    with pytest.raises(JobAbortedError) as raised:
        rank.engine.submit(rank.handle("b"))
    assert str(raised.value) == REASON
    assert rank.turn == "idle"
    assert rank.engine.shutdown() is None, "it has been raised"


def after(call, then):
    def both(*arguments: object) -> None:
        call(*arguments)
        then()

    return both


def test_a_dead_progress_thread_of_which_no_call_has_told_is_told_by_shutdown(rank):
    rank.group.thread_history += [fail]
    rank.start()
    rank.engine._progress_thread.join(DEADLINE)
    assert rank.engine.shutdown() == REASON


def test_a_thread_that_waits_hears_that_the_progress_thread_has_died(rank, in_thread):
    handle = rank.engine.run(rank.handle("a"))

    def die() -> None:
        in_thread(lambda: rank.engine._failing.die(OSError("no more descriptors"))).result(DEADLINE)

    rank.group.history += [die]
    with pytest.raises(JobAbortedError, match="the progress thread of rank 1 failed: OSError: no more descriptors"):
        handle.wait()
    assert rank.group.bell.rings == 1


# A generation that is over -------------------------------------------------------------------------------------------


def test_what_is_under_way_fails_with_the_reason_why_the_generation_is_over(rank):
    handle = rank.engine.submit(rank.handle("a"))
    rank.engine.fail("rank 0 was killed by SIGKILL")
    assert (handle.done, rank.turn) == (True, "idle")
    for later in (handle.wait, lambda: rank.engine.run(rank.handle("b"))):
        with pytest.raises(JobAbortedError, match=r"^rank 0 was killed by SIGKILL$"):
            later()
    assert rank.group.announced == []  # the others are told by the launcher
    assert rank.group.stop_reason == "rank 0 was killed by SIGKILL"


def test_the_thread_that_has_the_turn_fails_what_is_under_way(rank):
    """The channel's thread comes while the main thread communicates, and does not wait for it."""
    handle, other = rank.engine.run(rank.handle("a")), rank.engine.run(rank.handle("b"))

    def end() -> None:
        started(rank.engine.fail, "rank 0 was killed by SIGKILL").result(DEADLINE)
        assert (handle.done, rank.turn) == (False, "caller")

    rank.group.history += [end]
    with pytest.raises(JobAbortedError, match=r"^rank 0 was killed by SIGKILL$"):
        handle.wait()
    assert other.done


def test_a_rank_that_leaves_a_generation_that_is_over_has_lost_nothing_unreported(rank):
    rank.start()
    handle = rank.engine.submit(rank.handle("a"))
    rank.engine.fail("rank 0 was killed by SIGKILL")
    assert rank.engine.shutdown("it leaves this generation") is None
    assert handle.done
    assert rank.group.is_closed


def test_whoever_asks_who_is_missing_makes_progress_until_the_answer_comes(rank):
    handle = rank.engine.submit(rank.handle("a"))
    answer = lambda: messages.pack_key(messages.MISSING, handle.key, "not by rank 0")  # noqa: E731
    rank.group.history += [lambda: rank.control.inbox.append((0, answer()))]
    assert rank.engine.who_is_missing(handle) == "not by rank 0"
    assert rank.control.sent[-1] == (0, messages.pack_key(messages.INQUIRY, handle.key))
    assert rank.control.alarmed == [0]
    assert not handle.done
