"""`DistrunStrategy` for the package `lightning`."""

from lightning.fabric.plugins.environments import ClusterEnvironment
from lightning.pytorch.strategies import DDPStrategy

from distrun.lightning.shared import DistrunEnvironment, StrategyOnDistrun

__all__ = ["DistrunStrategy"]

ClusterEnvironment.register(DistrunEnvironment)


class DistrunStrategy(StrategyOnDistrun, DDPStrategy):
    """Trains on the ranks that `distrun` has started, and reduces gradients as `distrun.torch.DistributedOptimizer`."""
