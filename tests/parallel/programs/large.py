"""More elements than 32 bits count."""

import numpy as np

import distrun

COUNT = (1 << 31) + 7

distrun.init()
me, size = distrun.rank(), distrun.size()
places = [0, 1, (1 << 31) - 1, 1 << 31, COUNT - 1, *range(12_345, COUNT, COUNT // 50)]
tensor = distrun.empty(COUNT, np.uint8)
tensor[:] = me
tensor[places] = [10 * me + place % 7 for place in range(len(places))]
assert distrun.allreduce_(tensor, "large", distrun.Max) is tensor
assert tensor[places].tolist() == [10 * (size - 1) + place % 7 for place in range(len(places))]
tensor[places] = size - 1
assert tensor.min() == tensor.max() == size - 1

tensor[:] = 0
tensor[places] = [100 + me] * len(places)
distrun.broadcast_(tensor, size - 1)
assert tensor[places].tolist() == [99 + size] * len(places)
assert np.count_nonzero(tensor) == len(places)
