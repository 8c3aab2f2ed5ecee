"""The states of elastic training."""

from distrun.torch.elastic import TorchState as TorchState
from distrun.torch.elastic.handlers import ModelStateHandler as ModelStateHandler, StateHandler as StateHandler
from distrun.torch.elastic.optimizers import OptimizerStateHandler as OptimizerStateHandler
from distrun.torch.elastic.state import (
    get_handler_registry as get_handler_registry,
    set_handler_registry as set_handler_registry,
)
