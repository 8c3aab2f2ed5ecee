"""Arrays larger than staging, of ordinary memory and of `distrun.empty`, on every collective against numpy."""

import numpy as np
from hypothesis import strategies as st
from operations import perform_all

from distrun.runtime.transport.shared_memory.segment import STAGE
from examples import Tensor


@st.composite
def large(draw):
    dtype = draw(st.sampled_from(["uint8", "float32", "float64"]))
    piece = STAGE // np.dtype(dtype).itemsize
    count = draw(st.sampled_from([piece - 1, piece, piece + 1, 2 * piece, 3 * piece + 17]))
    layouts = draw(st.lists(st.sampled_from(["C", "C", "shared"]), min_size=4, max_size=4))
    return Tensor(dtype, (count,), tuple(layouts), draw(st.integers(0, 2**31)), "small")


perform_all(60, "allreduce", "reducescatter", "allgather", "broadcast", tensor=large())
