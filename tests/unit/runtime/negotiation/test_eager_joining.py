"""Offers to a rank that has joined: none of them waits for what that rank submits after the join."""

from __future__ import annotations

import numpy as np
import pytest
from histories.negotiating_rank import Rank

from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.reduction import Min
from distrun.runtime.operations.request import JOIN, JOIN_NAME, Request

BROADCAST = Request("broadcast", "w", "float32", ((2,),), root=1)
REDUCTION = Request("allreduce", "w", "float32", ((2,),), Min, prescale=2.0)
JOINING = Request(JOIN, JOIN_NAME, "int64", ((),))


def submit(rank: Rank, request: Request) -> Handle:
    array = np.ones(2, np.float32)
    handle = Handle(None, request, [array], [array])
    rank.operations.enter(handle)
    return handle


def told(rank: Rank) -> list[bytes]:
    return [message for _, message in rank.posted()]


@pytest.mark.parametrize("request_", [BROADCAST, REDUCTION], ids=["without array", "with array"])
@pytest.mark.parametrize("joined", [0, 1])
def test_an_offer_that_fails_since_the_other_rank_has_joined_does_not_serve_the_next_operation(request_, joined):
    ranks = Rank(0, hosts=True, offers=True), Rank(1, hosts=True, offers=True)
    for rank in ranks:
        rank.learn(submit(rank, request_._replace(root=joined) if request_.root >= 0 else request_))
    one, other = ranks[joined], ranks[1 - joined]
    request_ = next(iter(one.operations._cache_ids))
    joins = [submit(one, JOINING)]
    other.hear(joined, *told(one))
    failed = submit(other, request_)
    one.hear(1 - joined, *told(other))
    other.hear(joined, *told(one))
    assert (one.finished(), other.finished()) == ([], [failed])
    joins.append(submit(other, JOINING))
    one.hear(1 - joined, *told(other))
    other.hear(joined, *told(one))
    assert one.finished() + other.finished() == joins
    submit(one, request_)
    assert told(one)
    assert one.decided() == one.finished() == []
