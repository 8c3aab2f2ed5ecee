"""Elastic training, which is not there yet: see `horovod.common.elastic`."""

from horovod.common.elastic import ObjectState as ObjectState, State as State, run as run
from horovod.torch.elastic.sampler import ElasticSampler as ElasticSampler
from horovod.torch.elastic.state import TorchState as TorchState
