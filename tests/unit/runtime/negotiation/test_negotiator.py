"""The coordinator protocol by histories of messages: what goes up, what comes down, and what is under way meanwhile."""

from __future__ import annotations

import numpy as np
import pytest
from histories.negotiating_rank import Rank

from distrun.errors import JobAbortedError, MismatchError, StallError
from distrun.runtime.negotiation import messages
from distrun.runtime.negotiation.decisions import LONGEST_LIST, Define, Execute, Fail
from distrun.runtime.negotiation.messages import pack_decision, pack_ids, pack_reminder
from distrun.runtime.negotiation.negotiator import PUSH_INTERVAL, RETRY
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import DISSOLVE_PROCESS_SET, FORM_PROCESS_SET, Request
from distrun.runtime.operations.timeouts import Timeouts

# A follower -----------------------------------------------------------------------------------------------------------


def test_a_request_goes_up_in_full_once_and_by_its_cache_id_ever_after():
    rank = Rank(1)
    first = rank.submit("a")
    assert rank.posted() == [(0, messages.FULL_REQUEST + first.full_request)]
    rank.hear(0, pack_decision(Define(7, first.request)))
    assert rank.decided() == [[first]]
    again = rank.submit("a")
    assert rank.posted() == [(0, pack_ids(messages.CACHE_IDS, [7]))]
    rank.hear(0, pack_decision(Execute([7])))
    assert rank.decided() == [[again]]
    assert rank.operations.is_empty


def test_the_order_of_submissions_is_kept_where_known_and_new_requests_alternate():
    rank = Rank(1)
    rank.learn(rank.submit("a"), rank.submit("b"))
    rank.submit("a")
    rank.submit("b")
    new = rank.submit("c")
    rank.submit(None)
    assert [message[:1] for _, message in rank.posted()] == [
        messages.CACHE_IDS, messages.FULL_REQUEST, messages.FULL_REQUEST,
    ]  # fmt: skip
    assert new.full_request


def test_more_cache_ids_than_fit_a_message_go_up_in_several():
    rank = Rank(1)
    rank.learn(rank.submit(None))
    for _ in range(LONGEST_LIST + 1):
        rank.submit(None)
    assert rank.posted() == [(0, pack_ids(messages.CACHE_IDS, [0] * count)) for count in (LONGEST_LIST, 1)]


def test_decisions_are_executed_in_the_order_in_which_they_come_and_small_ones_together():
    rank = Rank(1)
    rank.learn(rank.submit("a"), rank.submit("b"), rank.submit("c"))
    a, b, c = rank.submit("a"), rank.submit("b"), rank.submit("c")
    rank.negotiator.progress()
    rank.hear(0, pack_decision(Execute([2])), pack_decision(Execute([1, 0])))
    assert rank.decided() == [[c], [b, a]]


def test_a_failure_comes_to_the_operation_it_is_about_and_to_no_other():
    rank = Rank(1)
    a, b = rank.submit("a"), rank.submit("b")
    rank.hear(0, pack_decision(Fail((0, "a"), "the ranks disagree", (0, 1))))
    assert rank.finished() == [a]
    assert isinstance(a.error, MismatchError)
    rank.hear(0, pack_decision(Fail((0, "b"), "rank 2 did not come", (0, 1), is_stall=True)))
    assert rank.finished() == [b]
    assert isinstance(b.error, StallError)


def test_a_late_failure_of_an_unnamed_operation_leaves_the_others_their_places():
    rank = Rank(1)
    one, two, three = rank.submit(None), rank.submit(None, count=3), rank.submit(None, count=4)
    rank.negotiator.progress()
    rank.hear(0, pack_decision(Fail((0, 1), "the ranks disagree", (0, 1))))
    assert rank.finished() == [two]
    rank.hear(0, *[pack_decision(Define(-1, handle.request)) for handle in (one, three)])
    assert rank.decided() == [[one], [three]]


def test_the_question_where_its_main_thread_is_is_answered_before_anything_is_executed():
    rank = Rank(1)
    handle = rank.submit("a")
    rank.posted()
    rank.hear(0, pack_decision(Define(0, handle.request)), messages.QUESTION)
    ((to, answer),) = rank.sent()
    assert to == 0
    assert answer.startswith(messages.ANSWER)
    assert b"negotiating_rank" in answer


def test_a_follower_that_hears_nothing_reminds_the_coordinator_and_wakes_it():
    rank = Rank(1, timeouts=Timeouts(2.0, 0.0))
    rank.submit("a")
    rank.posted()
    assert rank.negotiator.next_look(rank.now) == rank.now + 2.0
    rank.now += 2.0
    rank.negotiator.check_stalls()
    assert rank.sent() == [(0, pack_reminder(2.0))]
    assert rank.control.alarmed == [0]


def test_a_full_mailbox_is_tried_again_soon():
    rank = Rank(1)
    assert rank.negotiator.next_look(rank.now) == float("inf")
    rank.control.is_stuck = True
    assert not rank.negotiator.is_idle
    assert rank.negotiator.next_look(rank.now) == rank.now + RETRY
    assert rank.control.pushes == 1


def test_a_connection_that_did_not_take_all_is_looked_at_again_and_keeps_the_rank_from_being_idle():
    rank = Rank(1, hosts=True)
    assert rank.negotiator.is_idle
    rank.control.is_sending = True
    assert rank.negotiator.next_look(rank.now) == rank.now + PUSH_INTERVAL
    assert not rank.negotiator.is_idle


# The coordinator ------------------------------------------------------------------------------------------------------


def test_what_all_have_submitted_is_decided_and_told_to_all():
    rank = Rank(0, 3)
    handle = rank.submit("a")
    rank.negotiator.progress()
    rank.hear(1, messages.FULL_REQUEST + handle.request.encode("a.py:1"))
    assert rank.decided() == []
    assert rank.sent() == []
    rank.hear(2, messages.FULL_REQUEST + handle.request.encode("a.py:1"))
    assert rank.sent() == [(to, pack_decision(Define(0, handle.request))) for to in (1, 2)]
    assert rank.decided() == [[handle]]


def test_a_decision_goes_to_all_before_any_is_executed_here():
    """Another rank may begin at once, and its part of a later one does not wait for ours of this one."""
    rank = Rank(0)
    rank.learn(rank.submit("a"), rank.submit("b"))
    rank.submit("a")
    rank.hear(1, pack_ids(messages.CACHE_IDS, [0]))
    rank.submit("b")
    rank.hear(1, pack_ids(messages.CACHE_IDS, [1]))
    assert [message for _, message in rank.sent()] == [pack_decision(Execute([0])), pack_decision(Execute([1]))]
    assert len(rank.operations.decided) == 2


def test_a_decision_for_which_the_mailboxes_have_no_room_is_executed_when_it_has_been_told():
    """A rank that executes it would wait for one that never hears of it."""
    rank = Rank(0)
    handles = [rank.submit(name) for name in ("a", "b", "c")]
    rank.negotiator.progress()
    rank.control.room = 1
    rank.hear(1, *(messages.FULL_REQUEST + handle.request.encode("a.py:1") for handle in handles))
    assert rank.sent() == [(1, pack_decision(Define(0, handles[0].request)))]
    assert rank.decided() == [[handles[0]]]
    assert not rank.negotiator.is_idle
    assert rank.negotiator.next_look(rank.now) == rank.now + RETRY
    # Each is executed as soon as it has been told: the other rank may wait for us in it, and empty its mailbox after.
    for place in (1, 2):
        rank.control.room = 1
        assert rank.posted() == [(1, pack_decision(Define(place, handles[place].request)))]
        assert rank.decided() == [[handles[place]]]
    assert rank.negotiator.is_idle


def test_a_disagreement_is_told_to_the_ranks_that_have_submitted():
    rank = Rank(0)
    handle = rank.submit("a", count=3)
    rank.negotiator.progress()
    rank.hear(1, messages.FULL_REQUEST + handle.request._replace(shapes=((4,),)).encode("b.py:2"))
    ((to, message),) = rank.sent()
    assert to == 1
    assert "the ranks disagree about shapes" in messages.unpack_fail(message).text
    assert rank.finished() == [handle]
    assert isinstance(handle.error, MismatchError)


def test_a_missing_rank_is_asked_where_it_is_and_its_answer_is_reported(caplog):
    rank = Rank(0, 3, timeouts=Timeouts(5.0, 0.0))
    handle = rank.submit("a")
    rank.hear(1, messages.FULL_REQUEST + handle.request.encode("a.py:1"))
    rank.now += 5.0
    rank.negotiator.check_stalls()
    assert rank.sent() == [(2, messages.QUESTION)]
    assert rank.control.alarmed == [2]
    assert not rank.negotiator.is_idle
    rank.hear(2, messages.ANSWER + b"train.py, line 3, in load")
    assert "allreduce 'a' has waited for 5.0 s: submitted by ranks 0-1" in caplog.text
    assert "train.py, line 3, in load" in caplog.text


def test_a_reminder_says_for_how_long_others_have_waited_before_this_rank_took_note(caplog):
    rank = Rank(0, 2, timeouts=Timeouts(5.0, 0.0))
    request = Request("allreduce", "a", "float32", ((2,),))
    rank.hear(1, messages.FULL_REQUEST + request.encode("a.py:1"), pack_reminder(60.0))
    assert rank.negotiator.next_look(rank.now) == rank.now - 55.0
    rank.negotiator.check_stalls()
    rank.negotiator.check_stalls()
    assert "allreduce 'a' has waited for 60.0 s" in caplog.text


# Several hosts --------------------------------------------------------------------------------------------------------


def test_a_rank_of_another_host_that_is_lost_ends_what_is_undecided_but_not_what_is_decided():
    rank = Rank(1, hosts=True)
    handle = rank.submit("a")
    rank.negotiator.progress()
    rank.control.lost = "rank 0 (process 1 on host a) has left"
    assert rank.negotiator.has_news()
    with pytest.raises(JobAbortedError, match=r"^allreduce 'a': rank 0 .* has left$"):
        rank.negotiator.check_hosts()
    rank.hear(0, pack_decision(Define(0, handle.request)))
    rank.negotiator.check_hosts()
    assert rank.decided() == [[handle]]


def payload(letter: bytes, cache_id: int, *values: float) -> bytes:
    return letter + bytes(3) + cache_id.to_bytes(4, "little") + np.array(values, np.float32).tobytes()


def test_a_small_array_goes_up_with_its_message_and_the_result_comes_with_the_decision():
    rank = Rank(1, 3, hosts=True)
    rank.learn(rank.submit("a"))
    handle = rank.submit("a", 2.0)
    assert rank.posted() == [(0, payload(messages.PIGGYBACK, 0, 2.0, 2.0))]
    rank.hear(0, payload(messages.RESULT, 0, 7.0, 8.0))
    assert rank.finished() == [handle]
    assert handle.outputs[0].tolist() == [7.0, 8.0]


def test_the_coordinator_combines_the_payloads_when_all_have_come():
    rank = Rank(0, 3, hosts=True)
    rank.learn(rank.submit("a"))
    handle = rank.submit("a", 1.0)
    rank.hear(1, payload(messages.PIGGYBACK, 0, 2.0, 2.0))
    assert rank.sent() == []
    rank.hear(2, payload(messages.PIGGYBACK, 0, 4.0, 4.0))
    assert rank.sent() == [(to, payload(messages.RESULT, 0, 7.0, 7.0)) for to in (1, 2)]
    assert rank.finished() == [handle]
    assert rank.operations.is_empty


def test_payloads_that_are_not_all_there_are_dropped_and_the_operation_is_executed_like_any_other():
    rank = Rank(0, 3, hosts=True)
    rank.learn(rank.submit("a"))
    for turn in range(2):  # what is left of the first would spoil the second
        handle = rank.submit("a", 1.0)
        rank.hear(1, payload(messages.PIGGYBACK, 0, 2.0, 2.0))
        rank.hear(2, pack_ids(messages.CACHE_IDS, [0]))
        assert rank.sent() == [(to, pack_decision(Execute([0]))) for to in (1, 2)], turn
        assert rank.decided() == [[handle]]


def test_a_rank_that_is_ahead_may_send_the_next_payload_before_the_first_was_looked_at():
    rank = Rank(1, hosts=True, offers=True)
    rank.learn(rank.submit("a"))
    first = rank.submit("a", 1.0)
    rank.negotiator.progress()
    rank.hear(0, payload(messages.PIGGYBACK, 0, 2.0, 2.0), payload(messages.PIGGYBACK, 0, 5.0, 5.0))
    assert rank.finished() == [first]
    assert first.outputs[0].tolist() == [3.0, 3.0]
    first.done = True
    second = rank.submit("a", 1.0)
    rank.negotiator.progress()
    assert rank.finished() == [second]
    assert second.outputs[0].tolist() == [6.0, 6.0]


def test_a_failed_operation_takes_its_payloads_along():
    rank = Rank(1, 3, hosts=True)
    rank.learn(rank.submit("a"))
    failed = rank.submit("a", 1.0)
    rank.negotiator.progress()
    rank.hear(0, pack_decision(Fail((0, "a"), "rank 2 did not come", (0, 1), is_stall=True)))
    assert rank.finished() == [failed]
    assert rank.negotiator._eager._piggyback._sent == {}


def test_a_payload_that_comes_too_late_counts_for_nothing():
    zero = Rank(0, hosts=True)
    zero.learn(zero.submit("a"))
    given_up = zero.submit("a", 1.0)
    zero.negotiator.progress()
    zero.ask(given_up, "is late")
    assert isinstance(given_up.error, StallError)
    zero.finished()
    zero.hear(1, payload(messages.PIGGYBACK, 0, 5.0, 5.0))
    again = zero.submit("a", 2.0)
    zero.hear(1, payload(messages.PIGGYBACK, 0, 7.0, 7.0))
    assert zero.finished() == [again]
    assert again.outputs[0].tolist() == [9.0, 9.0]
    assert not zero.negotiator._eager._piggyback.received


# Process sets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("submitted", "alarmed"),
    [
        *(
            (Request("barrier", "b", "uint8", (), process_set=number), alarmed)
            for number, alarmed in ((0, []), (7, []), (8, [0]))
        ),
        (Request(FORM_PROCESS_SET, "s", "int64", ((0, 1),)), []),
        (Request(FORM_PROCESS_SET, "s", "int64", ((1, 2),)), [0]),
    ],
)
def test_a_coordinator_that_does_not_take_part_in_a_set_or_its_forming_is_woken(submitted, alarmed):
    rank = Rank(1, 3)
    handle = Handle(None, submitted, [], [])
    rank.operations.enter(handle)
    assert rank.posted() == [(0, messages.FULL_REQUEST + handle.full_request)]
    assert rank.control.alarmed == alarmed


def test_ranks_take_part_in_forming_a_set_of_others_and_are_woken_for_it():
    form = Request(FORM_PROCESS_SET, "s", "int64", ((1, 2),))
    coordinator, other = Rank(0, 4), Rank(3, 4)
    coordinator.hear(1, messages.FULL_REQUEST + form.encode("train.py:1"))
    assert coordinator.sent() == []
    coordinator.hear(2, messages.FULL_REQUEST + form.encode("train.py:2"))
    sent = coordinator.sent()
    assert [rank for rank, _ in sent] == coordinator.control.alarmed == [1, 2, 3]
    other.hear(0, sent[-1][1])
    for rank in (coordinator, other):
        ((stand_in,),) = rank.decided()
        assert (stand_in.request, stand_in.stands_in) == (form, True)


def test_that_a_set_is_dissolved_is_told_and_not_waited_for():
    rank = Rank(1, 3)
    handle = Handle(None, Request(DISSOLVE_PROCESS_SET, "7", "int64", ((7,),)), [], [])
    rank.operations.enter(handle)
    assert rank.posted() == [(0, messages.FULL_REQUEST + handle.full_request)]
    assert rank.operations.is_empty


# Inquiries ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("why", "letter"), [("", messages.INQUIRY), ("is late: {who}", messages.GIVE_UP)])
def test_a_rank_asks_rank_0_who_is_missing_or_to_give_up_and_waits_for_the_answer(why, letter):
    one = Rank(1)
    handle = one.submit(None)
    one.negotiator.progress()
    inquiry = one.ask(handle, why)
    assert one.control.sent[-1] == (0, messages.pack_key(letter, (0, 0), why))
    assert one.control.alarmed == [0]
    assert not one.negotiator.has_news()
    assert not inquiry.done
    one.hear(0, messages.pack_key(messages.MISSING, (0, 1), "of another operation"))
    assert inquiry.answer is None
    one.hear(0, messages.pack_key(messages.MISSING, (0, 0), "not by rank 2"))
    assert inquiry.done
    assert inquiry.answer == "not by rank 2"
    assert one.operations.pending[0, 0] is handle


@pytest.mark.parametrize("who_asks", [0, 2])
def test_rank_0_gives_up_what_waits_for_ranks_and_tells_all_that_wait(who_asks):
    zero = Rank(0, 3)
    handle, other = zero.submit("a"), zero.submit("b")
    zero.negotiator.progress()
    zero.hear(2, messages.FULL_REQUEST + handle.request.encode("b.py:3"))
    for name in ("unknown", "a"):
        before = len(zero.control.sent)
        if who_asks:
            zero.hear(who_asks, messages.pack_key(messages.GIVE_UP, (0, name), "is late: {who}."))
        else:
            zero.ask(handle, "is late: {who}.")
        if who_asks and name == "unknown":
            assert zero.control.sent[before:] == [(who_asks, messages.pack_key(messages.MISSING, (0, name)))]
    rank, text = zero.control.sent[-1]
    assert rank == 2
    told = messages.unpack_fail(text).text
    assert told.startswith("allreduce 'a' is late: submitted by ranks 0, 2")
    assert told.endswith("not by <1>.")
    assert isinstance(handle.error, StallError)
    assert str(handle.error) == told
    assert other.error is None


def test_rank_0_answers_others_and_itself():
    zero = Rank(0, 3)
    handle = zero.submit("a")
    zero.negotiator.progress()
    question = messages.pack_key(messages.INQUIRY, (0, "a"))
    zero.hear(2, messages.FULL_REQUEST + handle.request.encode("b.py:3"), question)
    answer = "submitted by ranks 0, 2"
    rank, text = zero.control.sent[-1]
    key, said = messages.unpack_key(text)
    assert (rank, text[:1], key) == (2, messages.MISSING, (0, "a"))
    assert said.startswith(answer)
    assert said.endswith("not by <1>")
    assert zero.ask(handle).answer == said
    zero.hear(2, messages.pack_key(messages.INQUIRY, (0, "unknown")))
    assert zero.control.sent[-1] == (2, messages.pack_key(messages.MISSING, (0, "unknown"), ""))
