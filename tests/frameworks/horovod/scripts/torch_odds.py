"""The smaller things that scripts of Horovod's do: errors, pickles, objects, questions."""

import io
import pickle

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.torch.compression import Compression
from horovod.torch.functions import broadcast_object
from horovod.torch.mpi_ops import Average, rank, size

try:
    hvd.rank()
except ValueError:
    pass
else:
    raise AssertionError("rank() before init() is a ValueError")

hvd.init()
assert hvd.is_initialized()
assert (rank(), size()) == (hvd.rank(), hvd.size())
assert hvd.mpi_ops.is_homogeneous()
assert isinstance(hvd.nccl_built(), int)
assert hvd.gloo_built()
for question in (hvd.mpi_threads_supported, hvd.mpi_enabled, hvd.mpi_built, hvd.gloo_enabled, hvd.gloo_built):
    assert isinstance(question(), bool), question
for question in (hvd.ddl_built, hvd.ccl_built, hvd.cuda_built, hvd.rocm_built):
    assert isinstance(question(), bool), question

assert hvd.Average == Average
assert hvd.Average != hvd.Sum
assert len({hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product}) == 5

# A failure is HorovodInternalError, and the job goes on
try:
    hvd.allreduce(torch.ones(2 + hvd.rank()), name="mismatch")
except HorovodInternalError:
    pass
else:
    raise AssertionError("shapes that differ are a HorovodInternalError")
assert issubclass(HostsUpdatedInterrupt, RuntimeError)

# Objects, and pickles of what the package has
assert broadcast_object({"epoch": hvd.rank() + 3}, root_rank=1) == {"epoch": 4}
assert hvd.allgather_object(hvd.rank()) == [0, 1]
for value in (
    hvd.Compression.fp16,
    Compression,
    hvd.Sum,
    HorovodInternalError,
    hvd.DistributedOptimizer,
    hvd.allreduce,
):
    assert pickle.loads(pickle.dumps(value)) is value
saved = io.BytesIO()
torch.save({"compression": hvd.Compression.fp16, "op": hvd.Average}, saved)
assert torch.load(io.BytesIO(saved.getvalue()), weights_only=False)["compression"] is hvd.Compression.fp16
written_by_horovod = b"chorovod.torch.compression\nFP16Compressor\n."  # the class, as pickle's protocol 0 names it
assert pickle.loads(written_by_horovod) is hvd.Compression.fp16

hvd.shutdown()
assert not hvd.is_initialized()
hvd.init(process_sets="dynamic")
assert hvd.size() == 2
