"""Other ways to train than one allreduce per step: `diloco`, outer steps now and then, and parameter `servers`."""
