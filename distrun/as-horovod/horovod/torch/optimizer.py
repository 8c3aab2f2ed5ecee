"""DistributedOptimizer."""

from distrun.torch import DistributedOptimizer as DistributedOptimizer
