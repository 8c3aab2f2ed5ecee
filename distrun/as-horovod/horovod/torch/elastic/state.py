"""The states of elastic training."""

from distrun.torch.elastic import TorchState as TorchState
from distrun.torch.elastic.handlers import (
    ModelStateHandler as ModelStateHandler,
    OptimizerStateHandler as OptimizerStateHandler,
    StateHandler as StateHandler,
    get_handler_registry as get_handler_registry,
    set_handler_registry as set_handler_registry,
)
