"""Objects of any size and kind, different ones on each rank."""

import datetime

import numpy as np

import distrun

distrun.init()
me, size = distrun.rank(), distrun.size()


def thing(rank: int) -> object:
    return {"rank": rank, "when": datetime.date(2024, 1, 1 + rank), "list": list(range(rank * 1000)), "none": None}


for root in range(size):
    mine = thing(me)
    received = distrun.broadcast_object(mine, root)
    assert received == thing(root)
    if me == root:
        assert received is mine
    assert distrun.broadcast_object(thing(me) if me == root else None, root, name="named") == thing(root)
assert distrun.allgather_object(thing(me)) == [thing(rank) for rank in range(size)]
assert distrun.allgather_object(None, name="named") == [None] * size
assert distrun.allgather_object("x" * (3_000_000 * me)) == ["x" * (3_000_000 * rank) for rank in range(size)]
double = distrun.broadcast_object((lambda x: 2 * x) if me == 0 else None)
assert double(21) == 42
big = distrun.broadcast_object(np.arange(1_000_000) if me == size - 1 else None, size - 1)
assert big.sum() == 499999500000
