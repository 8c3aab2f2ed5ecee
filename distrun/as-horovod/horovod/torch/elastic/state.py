"""The states of elastic training, which is not there yet."""

from horovod.common.elastic import ObjectState


class TorchState(ObjectState):
    """A state of modules, optimizers and objects."""


class StateHandler(ObjectState):
    """The state of one object."""


class ModelStateHandler(StateHandler):
    """The state of a module."""


class OptimizerStateHandler(StateHandler):
    """The state of an optimizer."""


class SamplerStateHandler(StateHandler):
    """The state of an `ElasticSampler`."""
