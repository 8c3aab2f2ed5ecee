"""More operations at once than fit a message, more new requests than fit a mailbox, a group in place on one rank only,
and a forked child's arrays."""

import os

import numpy as np

import distrun

distrun.init()
me, size = distrun.rank(), distrun.size()

one = np.ones(1)
distrun.allreduce(one)
handles = [distrun.allreduce_async(one) for _ in range(70_000)]
assert all(handle.wait()[0] == 1 for handle in handles)

long_names = [f"{number} {'x' * 30_000}" for number in range(300)]
handles = [distrun.allreduce_async(one, name=name) for name in long_names]
assert all(handle.wait()[0] == 1 for handle in handles)

for count in (20, 20_000, 200_000):
    tensors = [np.full(count, number + me, np.float64) for number in range(3)]
    reduce = distrun.grouped_allreduce_ if me == 0 else distrun.grouped_allreduce
    for number, result in enumerate(reduce(tensors, "group", op=distrun.Sum)):
        assert (result == size * number + size * (size - 1) // 2).all(), (count, number)

mine = distrun.empty(10)
mine[:] = 0
child = os.fork()
if child == 0:
    other = distrun.empty(10)
    other[:] = 7
    try:
        distrun.allreduce(other)
    except distrun.JobAbortedError:
        os._exit(0)
    os._exit(3)
assert os.waitpid(child, 0)[1] == 0
fresh = distrun.empty(10)
assert (mine == 0).all()
assert (distrun.allreduce(np.ones(2)) == 1).all()
