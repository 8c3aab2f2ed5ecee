"""Horovod's sampler for elastic training with torch."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

from torch.utils.data import Sampler

from distrun.data.plan import Division, Plan
from distrun.data.position import Position
from distrun.runtime.world import world


class ElasticSampler(Sampler[Any]):
    """A sampler of what is left of an epoch, which ranks that come in divide again among all.

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

    Horovod's rules hold: it belongs into the state; `record_batch` is to be called on every rank after every step, and
    `set_epoch` for every epoch. All ranks get equally many samples: if they cannot divide what is left evenly, some
    samples come a second time. With `batch_size` none does.

    Differences from Horovod: `set_epoch` may be called at the beginning of an epoch too, since an epoch that ranks have
    come into keeps what was processed of it. The order of an epoch is the one that `distrun.data.shard` has.

    Args:
        dataset: has a length, which does not change.
        shuffle: whether each epoch has an order of its own, which depends on `seed` and the epoch alone.
        seed: the same on all ranks.
        batch_size: samples of each rank in a step. With it this is a sampler of batches: hand it to a `DataLoader` as
            `batch_sampler`. Every sample of an epoch is then taken once: the last batches of the ranks, of which all
            have equally many, may differ by one sample, and have one more than `batch_size`. (After a regroup, fewer
            samples may be left than there are ranks: only then do some come a second time.)

    Raises:
        UsageError: fewer samples than ranks, or an impossible argument.
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
        """Go on with another epoch, of which nothing is processed."""
        self._position.set_epoch(epoch)

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that a step is done, here and so on all ranks.

        Args:
            batch_idx: the number of the batch; not looked at.
            batch_size: the samples that it has on each rank; with a `batch_size` of its own not looked at.
        """
        self._position.read(0)
        self._position.take(batch_size if self._position.plan.division.batch_size is None else 1)
        if not self._is_marked:
            self._position.advance()

    def advance(self) -> None:
        """Say that training can go on from here, as the `advance` and `commit` of a state do: from then on `state_dict`
        returns what was processed at the last such place."""
        self._is_marked = True
        self._position.advance()

    def state_dict(self) -> dict[str, int]:
        """Return what is processed, by all ranks."""
        return {"epoch": self.epoch, "processed_num": self._position.done}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on from what is processed, whatever ranks there were."""
        self._position.load_state_dict({"epoch": state_dict["epoch"], "done": state_dict["processed_num"]})

    def reset(self) -> None:
        """Divide what is left among the ranks that there are. It happens by itself when ranks come or go."""
        self._position.redeal(world.rank(), world.size())

    @property
    def epoch(self) -> int:
        """The epoch that is under way."""
        return self._position.epoch

    @property
    def processed_num(self) -> int:
        """The samples of the epoch that are processed, by all ranks together."""
        return self._position.taken

    @property
    def rank(self) -> int:
        """The rank whose samples these are."""
        return int(self._position.plan.division.rank)

    @property
    def num_replicas(self) -> int:
        """The ranks among which the samples are divided."""
        return int(self._position.plan.division.ranks)

    @property
    def num_samples(self) -> int:
        """The samples of this rank in what was left when it was last divided."""
        return int(self._position.plan.per_rank)

    @property
    def total_size(self) -> int:
        """The samples of all ranks in it, with those that come a second time."""
        plan: Plan = self._position.plan
        return plan.left + plan.padded

    @property
    def remaining_indices(self) -> list[int]:
        """The samples that were left of the epoch when it was last divided, in its order."""
        return self._position.plan.remaining(self.epoch).tolist()
