"""Elastic training with PyTorch: see `distrun.torch.elastic`."""

from distrun.elastic.loop import run_fn as run_fn
from distrun.torch.elastic import ObjectState as ObjectState, State as State, TorchState as TorchState, run as run
from horovod.torch.elastic.sampler import ElasticSampler as ElasticSampler
