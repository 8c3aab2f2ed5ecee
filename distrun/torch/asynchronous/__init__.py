"""Training with parameter servers: `optimizer` is the public function, `worker` does the exchange with the servers, and
`rules` converts torch's optimizers to the servers' rules."""

from distrun.torch.asynchronous.optimizer import AsyncOptimizer as AsyncOptimizer
