"""DistributedOptimizer: any torch optimizer, with the gradients of all ranks.

`wrapping` has the function itself, which mixes the class in `distributed` into an optimizer's class. In `diloco` the
ranks of a host reduce gradients, and the hosts average their parameters every few steps.
"""

from distrun.torch.optimizer.distributed import Distributed as Distributed
from distrun.torch.optimizer.wrapping import DistributedOptimizer as DistributedOptimizer
