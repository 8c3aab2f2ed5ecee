"""The collectives between hosts by one algorithm, which the job was told to use: right, and the same on all ranks."""

import hashlib

import numpy as np

import distrun
from distrun.runtime.world import world

distrun.init()
me, size = distrun.rank(), distrun.size()

for count in (1, 1000, 400_001):
    whole = np.arange(count) % 1000 + me
    total = distrun.allreduce(whole, op=distrun.Sum)
    assert (total == size * (np.arange(count) % 1000) + sum(range(size))).all()
    for dtype in (np.float32, np.float16):
        mine = np.random.default_rng(me).standard_normal(count).astype(dtype)
        exact = np.mean([np.random.default_rng(rank).standard_normal(count).astype(dtype) for rank in range(size)], 0)
        average = distrun.allreduce(mine)
        np.testing.assert_allclose(average, exact, atol=1e-2 if dtype is np.float16 else 1e-5)
        digests = distrun.allgather_object(hashlib.sha256(average.tobytes()).hexdigest())
        assert len(set(digests)) == 1, "the ranks have different bits"
    sent = np.random.default_rng(size - 1).standard_normal(count)
    copy = distrun.broadcast(sent.copy() if me == size - 1 else np.empty(count), size - 1)
    assert (copy == sent).all()

part = distrun.reducescatter(np.arange(12_000.0) + me, op=distrun.Sum)
wanted = np.array_split(size * np.arange(12_000.0) + sum(range(size)), size)[me]
assert (part == wanted).all()
gathered = distrun.allgather(np.full(me + 1, me))
assert (gathered == np.repeat(np.arange(size), np.arange(size) + 1)).all()
equal = distrun.allreduce(np.arange(1.0, 200_001.0), op=distrun.Adasum)
np.testing.assert_allclose(equal, np.arange(1.0, 200_001.0))
if size > 2:
    ends = distrun.add_process_set([0, size - 1])
    if ends.included():
        both = distrun.allreduce(np.full(300_000, float(me)), op=distrun.Sum, process_set=ends)
        assert (both == size - 1).all()
    distrun.remove_process_set(ends)
print(sorted(world.engine().backend._rail._algorithms))  # type: ignore[attr-defined]
distrun.shutdown()
