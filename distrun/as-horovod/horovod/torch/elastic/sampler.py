"""The sampler of elastic training, which is not there yet."""

from horovod.common.elastic import Absent


class ElasticSampler(Absent):
    """A sampler that goes on where a number of ranks stopped; use `distributed_sampler` while that number is fixed."""
