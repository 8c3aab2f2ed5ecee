"""Messages between hosts and launcher arrive as they were meant."""

import json

import pytest

from distrun.errors import LaunchError
from distrun.runner.hosts.joining.messages import AgentEnd, End, Member, MessageDecoder, MessageKind, encode

SAID = [(MessageKind.OUTPUT, b"x" * 70000), (MessageKind.INPUT, b""), (MessageKind.EXITED, b"{}")]


@pytest.mark.parametrize("size", [1, 3, 1 << 20])
def test_messages_arrive_in_pieces_of_any_size(size):
    data, decoder, heard = b"".join(encode(*message) for message in SAID), MessageDecoder(), []
    for start in range(0, len(data), size):
        heard += decoder.feed(data[start : start + size])
    assert heard == SAID


@pytest.mark.parametrize("data", [b"\xff\0\0\0\0", b"\x01\xff\xff\xff\xff"])
def test_what_is_no_message_is_refused(data):
    with pytest.raises(LaunchError, match="is no message of ours"):
        list(MessageDecoder().feed(data))


def test_a_member_and_the_ends_arrive_as_they_were_sent():
    member = Member(1, 2, "box", 3, "/", ("0", "2"), "m")
    assert Member.from_json(json.loads(json.dumps(member.to_json()))) == member
    assert AgentEnd.from_json(AgentEnd(-9, 15, False).to_json()) == AgentEnd(-9, 15, False)
    assert End.from_json(End(3, "why").to_json()) == End(3, "why")


@pytest.mark.parametrize("wrong", [{"index": "1"}, {"ranks": None}, {"more": 1}, {"gpus": 3}])
def test_an_introduction_that_makes_no_sense_is_no_member(wrong):
    with pytest.raises((TypeError, ValueError)):
        Member.from_json({**Member(1, 2, "box", 1, "/").to_json(), **wrong})
