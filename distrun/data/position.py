"""The place of all ranks in the data of an epoch, from which other ranks can go on.

A step takes the next samples in the order of the epoch, a batch for each rank. So one number, the samples that are
done, says what is left, and any rank knows it: nothing has to be gathered when ranks are gone. A batch is done when the
script has reached the end of its step, not when it was fetched: loaders fetch ahead.

Horovod's sampler also keeps one number, but moves it when a batch is recorded, wherever the step is, and pads.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from distrun.data.plan import Plan, StreamPlan
from distrun.errors import MismatchError, UsageError
from distrun.runtime.world import world

_positions: weakref.WeakSet[Position] = weakref.WeakSet()


class Position:
    """The place in the data that all ranks have come to: so many samples of an epoch are done.

    Everything that `distrun.data.shard` returns has one, its `position`. Put either into the state of an elastic
    training: `state.advance()` and `state.commit()` then tell the position that a step is done, ranks that come in take
    over the position of those that stay, and the rest of the epoch is dealt out among all of them. It also belongs into
    a checkpoint, for any number of ranks to go on from.
    """

    def __init__(self) -> None:
        self.epoch = 0
        """The epoch that is under way, from 0."""
        self.done = 0
        """The samples of the epoch that are done, by all ranks together."""
        self.is_over = False
        """Whether nothing of the epoch is left to do."""
        self.per_step: int | None = None
        """The batches of this rank that a step takes. None: those that the loop has taken from its iterator since the
        step before or, where nobody can tell, as in a tf.data.Dataset, one. `fit` reads ahead: there it is a number."""
        self._plan: Plan | StreamPlan | None = None
        self._redealt: weakref.WeakMethod[Callable[[], None]] | None = None
        self._stands = True  # the next iteration is through this epoch, not the next one
        self._resumes = False  # so is every iteration, until a step of it is done: Keras first looks at some batches
        self._is_chosen = False  # the script has named this epoch
        self._has_begun = False  # something has been fetched since the plan was made
        self._steps = 0  # those done since the plan was made
        self._taken: int | None = None  # the batches that the loop has taken since then
        self._last: int | None = None  # the batches that there are
        self.deals = 0
        """How often the samples were dealt out to other ranks, or from another place."""
        _positions.add(self)

    def __getstate__(self) -> dict[str, Any]:
        """Return what worker processes of torch get, to which nothing is dealt by us."""
        return {**self.__dict__, "_redealt": None}

    @property
    def next_epoch(self) -> int:
        """The epoch with which to go on: this one, or the next if this is over."""
        return self.epoch + self.is_over

    @property
    def plan(self) -> Any:
        """The plan of what was left of the epoch when it was last dealt out."""
        return self._plan

    def bind(self, plan: Plan | StreamPlan, redealt: Callable[[], None] | None = None) -> None:
        """Belong to some data from now on; the method `redealt` is called whenever its plan becomes another one."""
        self._plan = plan
        self._redealt = None if redealt is None else weakref.WeakMethod(redealt)
        self._deal()

    # What the script says ---------------------------------------------------------------------------------------------

    def advance(self, batches: int | None = None) -> None:
        """Say that a step is done. `state.advance()` and `state.commit()` do it.

        Args:
            batches: the batches of this rank that it took, or samples where there are no batches; None: see `per_step`.
        """
        if batches is None and self.per_step is None:
            if not self._has_begun:
                return
            self._steps = self._steps + 1 if self._taken is None else self._taken
        else:
            self._steps += self.per_step or 0 if batches is None else batches
        if self._steps:
            self._resumes = self._stands = self._is_chosen = False
            self._count()

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next. One that ranks have come into keeps what was done of it."""
        self._is_chosen = True
        if self._resumes and epoch == self.epoch:
            return
        self._resumes, self._stands = False, True
        self._move(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position, for any rank of any world that has the same data."""
        return {"epoch": self.epoch, "done": self.done, "is_over": self.is_over, "order": self._order()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a position: the next iteration is through what is left of its epoch.

        Raises:
            MismatchError: it is one of other data, or of another order.
        """
        ours, theirs = self._order(), state.get("order")
        if ours and theirs and ours != theirs:
            raise MismatchError(
                f"a position in {theirs} cannot be one in {ours}: give shard the same data, shuffle and seed"
            )
        self.epoch, self.done, self.is_over = state["epoch"], state["done"], state.get("is_over", False)
        self._resumes, self._is_chosen = True, False
        self.deals += 1
        self._deal()

    # What loaders say -------------------------------------------------------------------------------------------------

    def begin(self, taken: int | None = 0) -> None:
        """An iteration begins: through the epoch that was named, or what is left of it, or else through the next.

        Args:
            taken: 0 if the loader says `take`, None if it cannot.
        """
        if not (self._stands or self._resumes) or (self.is_over and not self._is_chosen):
            self._move(self.epoch + 1)
            self._resumes = False
        elif self._has_begun:  # and nothing was done
            self._deal()
        self._stands = False
        self._has_begun, self._taken = True, taken

    def read(self, taken: int | None = None) -> None:
        """Something is fetched by its number, which begins no epoch."""
        if not self._has_begun:
            self._has_begun, self._taken = True, taken

    @property
    def taken(self) -> int:
        """The samples of the epoch that loops have taken, by all ranks together; not all of them are done."""
        return int(self._plan.done(self._taken)) if self._plan and self._taken else self.done

    def take(self, batches: int = 1) -> None:
        """The loop takes the next batch."""
        if self._taken is not None:
            self._taken += batches

    def end(self) -> None:
        """The loop wants another batch after the last."""
        self._resumes = self._is_chosen = False
        self._last = self._taken
        if self.per_step is None and self._taken is not None:
            self._steps = self._taken
        self._count()

    def check(self, deals: int) -> None:
        """Refuse an iterator of a deal that is over.

        Raises:
            UsageError: it is one.
        """
        if deals != self.deals:
            raise UsageError(
                "this iterator belongs to ranks that are no more, and its samples have been dealt out anew: iterate "
                "over the data again"
            )

    def redeal(self, rank: int, ranks: int) -> None:
        """Deal out what is left to the ranks of another world."""
        if self._plan is not None:
            self._plan = replace(self._plan, division=replace(self._plan.division, rank=rank, ranks=ranks))
        self._resumes = True
        self.deals += 1
        self._deal()

    # Within -----------------------------------------------------------------------------------------------------------

    def _move(self, epoch: int) -> None:
        self.epoch, self.done, self.is_over = epoch, 0, False
        self._deal()

    def _deal(self) -> None:
        self._has_begun, self._steps, self._taken = False, 0, None
        if self._plan is not None:
            self._plan = replace(self._plan, start=self.done)
            self._last = getattr(self._plan, "steps", None)
        redealt = None if self._redealt is None else self._redealt()
        if redealt is not None:
            redealt()

    def _count(self) -> None:
        if self._plan is not None:
            self.done = self._plan.done(self._steps)
        self.is_over = self._last is not None and self._steps >= self._last

    def _order(self) -> str:
        if self._plan is None:
            return ""
        division = self._plan.division
        shuffle = f"shuffle={division.shuffle!r} and seed={division.seed}" if division.shuffle else "their order"
        number = f"{self._plan.samples} samples" if isinstance(self._plan, Plan) else "a stream of samples"
        return f"{number} in {shuffle}"


def _redeal() -> None:
    for position in list(_positions):
        position.redeal(world.rank(), world.size())


world.on_joining(_redeal)
