"""DistributedOptimizer: any torch optimizer, fed with the gradients of all ranks.

`wrapping` is the function, which makes an optimizer's class a subclass of `distributed`'s. `diloco` has the ranks of a
host reduce gradients, and the hosts exchange how far these have moved the parameters, now and then.
"""

from distrun.torch.optimizer.distributed import Distributed as Distributed
from distrun.torch.optimizer.wrapping import DistributedOptimizer as DistributedOptimizer
