"""Sealed messages: the other side opens them, in order, and nobody else opens or makes one."""

import pytest
from hypothesis import given, strategies as st

from distrun.host.sealing import PUBLIC_SIZE, KeyPair, SealError


@given(st.lists(st.binary(max_size=1000)))
def test_what_is_sealed_is_opened_by_the_other_side(messages):
    one, other = KeyPair("tea"), KeyPair("tea")
    seal, opener = one.seal_for(other.public), other.opener_from(one.public)
    back, front = other.seal_for(one.public), one.opener_from(other.public)
    for message in messages:
        sealed = seal.seal(message)
        assert len(sealed) == len(message) + 16
        assert len(message) < 8 or message not in sealed
        assert opener.open(sealed) == message
        assert front.open(back.seal(message)) == message


def pair():
    one, other = KeyPair("tea"), KeyPair("tea")
    return one.seal_for(other.public), other.opener_from(one.public)


def test_messages_cannot_be_changed_repeated_left_out_or_exchanged():
    for attack in (
        lambda first, second: first[:-1] + bytes([first[-1] ^ 1]),
        lambda first, second: bytes([first[0] ^ 1]) + first[1:],
        lambda first, second: first[:-1],
        lambda first, second: b"",
        lambda first, second: second,
    ):
        seal, opener = pair()
        with pytest.raises(SealError):
            opener.open(attack(seal.seal(b"first"), seal.seal(b"second")))
    seal, opener = pair()
    sealed = seal.seal(b"once")
    assert opener.open(sealed) == b"once"
    with pytest.raises(SealError):
        opener.open(sealed)


def test_nobody_else_opens_them_nor_the_one_who_sealed_them_nor_for_another_purpose():
    one, other = KeyPair("tea"), KeyPair("tea")
    sealed = one.seal_for(other.public).seal(b"for the other")
    for opener in (KeyPair("tea").opener_from(one.public), one.opener_from(other.public)):
        with pytest.raises(SealError):
            opener.open(sealed)
    coffee = KeyPair("coffee")
    with pytest.raises(SealError):
        coffee.opener_from(one.public).open(one.seal_for(coffee.public).seal(b"tea"))


@pytest.mark.parametrize("public", [b"", b"short", bytes(PUBLIC_SIZE)], ids=["none", "short", "the point of order 1"])
def test_what_is_no_public_key_is_refused(public):
    with pytest.raises(SealError):
        KeyPair("tea").seal_for(public)
