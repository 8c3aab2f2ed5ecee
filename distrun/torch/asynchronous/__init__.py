"""Training with parameter servers: `optimizer` is the face, `worker` its work, `rules` what is known of optimizers."""

from distrun.torch.asynchronous.optimizer import AsyncOptimizer as AsyncOptimizer
