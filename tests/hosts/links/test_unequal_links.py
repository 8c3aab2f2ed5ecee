"""A host with a slow link is found, and becomes a leaf of a tree."""

from __future__ import annotations

import pytest

PROGRAM = """
import numpy, distrun
from distrun.runtime.world import world
distrun.init()
for count in (1000, 300_000, 300_000):
    total = distrun.allreduce(numpy.full(count, distrun.rank()), op=distrun.Sum)
    assert (total == 3).all()
rail = world.engine().backend._rail
print(sorted(rail._slow), sorted(set(rail._algorithms) & {"tree"}))
"""


@pytest.mark.gate
def test_a_host_with_a_slow_link_becomes_a_leaf(output, python, shape, beta):
    for to in (True, False):
        shape(beta, "rate 20mbit burst 64kb latency 800ms", to=to)
    printed = output("-H", "alpha:1,beta:1,localhost:1", "--no-tag-output", *python(PROGRAM))
    assert printed.splitlines() == [b"[1] ['tree']"] * 3
