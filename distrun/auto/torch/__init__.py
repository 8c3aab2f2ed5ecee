"""Zero-line mode for PyTorch: the changes in torch that let a plain script train on all ranks.

The room: `install` puts the changes in place. `loaders` gives each rank its part of every batch (cut by `parts`), after
`trial.samples` has checked that all ranks have the same data. `optimizers` gives all ranks the same weights and
averages gradients, and `backward` weights these. `losses` finds out how the loss of a part relates to the loss of the
whole batch: `graph` takes it apart and `agreement` compares the ranks' graphs. `statistics` finds what a graph does not
show, and `trial` compares some steps with what a single process does. `reading` gives the script the loss of the whole
batch, `normalization` normalises by the statistics of the whole batch, `generators` keeps streams of random numbers,
`saving` lets only rank 0 write, `self_distributed` refuses scripts that distribute themselves, and `session` is the
state that all of them share.
"""

from __future__ import annotations


def install() -> None:
    """Change torch, right after the script has imported it."""
    import torch

    from distrun.auto import job
    from distrun.auto.torch import backward, loaders, normalization, optimizers, reading, saving, self_distributed
    from distrun.auto.torch.statistics import compiling
    from distrun.torch import cuda
    from distrun.torch.ranks import init

    rehearsing = job.current.rehearsing
    if rehearsing is None:
        init()
    elif rehearsing.gpu is not None:
        cuda.bind(rehearsing.gpu)
        # The rank must not run out of memory because this process holds it. The limit is lifted once the rank waits for
        # this process (`loaders.RehearsedBatches`).
        torch.cuda._lazy_call(lambda: torch.cuda.set_per_process_memory_fraction(0.3))  # type: ignore[no-untyped-call]
    torch.manual_seed(job.current.seed)
    for room in (optimizers, loaders, backward, reading, normalization, saving, self_distributed, compiling):
        room.install()
