"""Zero-line mode for PyTorch: what is changed in torch so that a plain script trains on all ranks.

The room: `install` puts the changes in place. `loaders` gives each rank its part of every batch (cut by `parts`) once
`trial.samples` has found that all have the same data, `optimizers` gives all ranks the same weights and has gradients
averaged, `backward` weighs them. What a loss is to that of the whole batch is found out by `losses`: `graph` takes it
apart and `agreement` compares the ranks'; `statistics` finds what its graph does not show, and `trial` compares some
steps with what one process does. `reading` gives the script the loss of the whole batch, `normalization` normalises it
as one, `generators` keeps streams of random numbers, `saving` lets rank 0 write, `own` refuses what distributes by
itself, and `session` is the state that all of them share.
"""

from __future__ import annotations


def install() -> None:
    """Change torch, which has just been imported."""
    import torch

    from distrun.auto import job
    from distrun.auto.randomness import common_seed
    from distrun.auto.torch import backward, loaders, normalization, optimizers, own, reading, saving
    from distrun.auto.torch.statistics import compiling
    from distrun.torch import cuda
    from distrun.torch.ranks import init

    rehearsing = job.current.rehearsing
    if rehearsing is None:
        init()
    elif rehearsing.gpu is not None:
        cuda.bind(rehearsing.gpu)
        # Until the rank waits for it: the rank must not run out of memory because this process has it.
        torch.cuda._lazy_call(  # type: ignore[no-untyped-call]
            lambda: torch.cuda.set_per_process_memory_fraction(0.3)
        )
    torch.manual_seed(common_seed())
    for room in (optimizers, loaders, backward, reading, normalization, saving, own, compiling):
        room.install()
