"""Horovod's sampler for elastic training with torch."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

from torch.utils.data import Sampler

from distrun.data.plan import Division, Plan
from distrun.data.position import Position
from distrun.runtime.world import world


class ElasticSampler(Sampler[Any]):
    """A sampler of the rest of an epoch, which is divided again among all ranks when ranks come or go.

        sampler = ElasticSampler(dataset)
        loader = DataLoader(dataset, batch_size=32, sampler=sampler)

        @elastic.run
        def train(state):
            for state.epoch in range(state.epoch, 90):
                sampler.set_epoch(state.epoch)
                for batch_idx, batch in enumerate(loader):
                    ...
                    optimizer.step()
                    sampler.record_batch(batch_idx, batch_size=32)
                    state.advance()

        train(TorchState(model, optimizer, sampler=sampler, epoch=0))

    Horovod's rules apply. The sampler belongs in the state, `record_batch` has to be called on every rank after every
    step, and `set_epoch` for every epoch. All ranks get the same number of samples: if the rest cannot be divided
    evenly, some samples are taken twice. With `batch_size` none is.

    Differences from Horovod: `set_epoch` may also be called at the beginning of an epoch, since it keeps what was
    processed of an epoch that new ranks have joined. The order of an epoch is the order of `distrun.data.shard`.

    Args:
        dataset: has a length, which does not change.
        shuffle: whether each epoch has its own order, which depends only on `seed` and the epoch.
        seed: the same on all ranks.
        batch_size: the samples of each rank in a step. With it this is a sampler of batches: pass it to a `DataLoader`
            as `batch_sampler`. Every sample of an epoch is then taken once. All ranks have the same number of batches.
            Their last batches may differ by one sample, and have one more than `batch_size`. (After a regroup, fewer
            samples may be left than there are ranks. Only then are some taken twice.)

    Raises:
        UsageError: there are fewer samples than ranks, or an argument is impossible.
        NotInitializedError: before `init()`.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0, batch_size: int | None = None) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self._position = Position()
        self._is_marked = False
        division = Division(world.rank(), world.size(), batch_size, shuffle, seed, pad=batch_size is None)
        self._position.bind(Plan(division, len(dataset)))

    def __iter__(self) -> Iterator[Any]:
        plan: Plan = self._position.plan
        indices = plan.indices(self.epoch).tolist()
        if plan.division.batch_size is None:
            return iter(indices)
        return iter([indices[plan.batch(step)] for step in range(plan.steps)])

    def __len__(self) -> int:
        plan: Plan = self._position.plan
        return plan.per_rank if plan.division.batch_size is None else plan.steps

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch, unless it is the one that ranks have just joined, which keeps what is processed."""
        self._position.set_epoch(epoch)

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that a step is done. It counts as done on all ranks.

        Args:
            batch_idx: the number of the batch, which is not used.
            batch_size: the samples of the batch on each rank. It is not used if the sampler has its own `batch_size`.
        """
        self._position.read(0)
        self._position.take(batch_size if self._position.plan.division.batch_size is None else 1)
        if not self._is_marked:
            self._position.advance()

    def advance(self) -> None:
        """Mark the point that training can continue from, as the `advance` and `commit` of a state do.

        After the first call, `state_dict` returns what was processed at the last such point.
        """
        self._is_marked = True
        self._position.advance()

    def state_dict(self) -> dict[str, int]:
        """Return the epoch, and the number of samples that all ranks together have processed."""
        return {"epoch": self.epoch, "processed_num": self._position.done}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Continue from a state of any number of ranks."""
        self._position.load_state_dict({"epoch": state_dict["epoch"], "done": state_dict["processed_num"]})

    def reset(self) -> None:
        """Divide the rest among the present ranks. This is also done automatically when ranks come or go."""
        self._position.redeal(world.rank(), world.size())

    @property
    def epoch(self) -> int:
        """The epoch in progress."""
        return self._position.epoch

    @property
    def processed_num(self) -> int:
        """The samples of the epoch that all ranks together have processed."""
        return self._position.taken

    @property
    def rank(self) -> int:
        """The rank that these samples belong to."""
        return int(self._position.plan.division.rank)

    @property
    def num_replicas(self) -> int:
        """The number of ranks that the samples are divided among."""
        return int(self._position.plan.division.ranks)

    @property
    def num_samples(self) -> int:
        """The samples of this rank in the rest of the epoch when it was last divided."""
        return int(self._position.plan.per_rank)

    @property
    def total_size(self) -> int:
        """The samples of all ranks in that rest, including the ones that are taken twice."""
        plan: Plan = self._position.plan
        return plan.left + plan.padded

    @property
    def remaining_indices(self) -> list[int]:
        """The samples in the rest of the epoch when it was last divided, in the order of the epoch."""
        return self._position.plan.remaining(self.epoch).tolist()
