"""Training with parameter servers: `optimizer` has the public function and converts torch's optimizers to the servers'
rules, and `worker` does the exchange with the servers."""

from distrun.torch.asynchronous.optimizer import AsyncOptimizer as AsyncOptimizer
