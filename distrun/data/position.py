"""The position of all ranks in the data of an epoch, where other ranks can continue.

A step takes the next samples in the order of the epoch, a batch for each rank. So one number, the samples that are
done, defines what is left. Every rank knows it, so nothing has to be collected when ranks are gone. A batch is done
when the script has reached the end of its step, not when it was fetched, since loaders fetch ahead.

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
    """The position of all ranks in the data: the number of samples of an epoch that are done.

    Everything that `distrun.data.shard` returns has one, its `position`. Put either into the state of an elastic
    training. Then `state.advance()` and `state.commit()` tell the position that a step is done. Ranks that join take
    over the position of the ranks that stay, and the rest of the epoch is divided among all of them. It also belongs in
    a checkpoint, so that any number of ranks can continue from it.
    """

    def __init__(self) -> None:
        self.epoch = 0
        """The epoch in progress, from 0."""
        self.done = 0
        """The samples of the epoch that all ranks together have done."""
        self.is_over = False
        """Whether nothing is left of the epoch."""
        self.per_step: int | None = None
        """The batches of this rank in a step. None: the number that the loop has taken from its iterator since the last
        step. Where that cannot be known, as in a tf.data.Dataset, it is one. `fit` reads ahead, so there it must be a
        number."""
        self._plan: Plan | StreamPlan | None = None
        self._redealt: weakref.WeakMethod[Callable[[], None]] | None = None
        # The epoch of the next iteration, by the state of the position (see `begin`):
        #
        #     _stands    new, or after `set_epoch`                   the present epoch, once
        #     _resumes   after `load_state_dict` or `redeal`         the present epoch each time, until a step is done
        #     neither    an iteration has begun, or a step is done   the next epoch
        #     is_over    the data have ended                         the next epoch, unless `set_epoch` chose this one
        #
        self._stands = True  # the next iteration is through this epoch, and not through the one after it
        self._resumes = False  # every iteration is, until a step is done: Keras first fetches some batches to inspect
        self._is_chosen = False  # the script has called `set_epoch` for this epoch
        self._has_begun = False  # something has been fetched since the last deal
        self._steps = 0  # the steps done since the last deal
        self._taken: int | None = None  # the batches that the loop has taken since the last deal, if it can tell
        self._last: int | None = None  # the number of batches until the end of the epoch, once it is known
        self.deals = 0
        """The number of times that the samples were dealt to other ranks, or from another position."""
        _positions.add(self)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for torch's worker processes. No callback, as they are not notified of deals."""
        return {**self.__dict__, "_redealt": None}

    @property
    def next_epoch(self) -> int:
        """The epoch to continue with: this one, or the next one if this one is over."""
        return self.epoch + self.is_over

    @property
    def plan(self) -> Any:
        """The plan for what was left of the epoch at the last deal."""
        return self._plan

    def bind(self, plan: Plan | StreamPlan, redealt: Callable[[], None] | None = None) -> None:
        """Use the position for some data. The method `redealt` is called each time the plan changes."""
        self._plan = plan
        self._redealt = None if redealt is None else weakref.WeakMethod(redealt)
        self._deal()

    # What the script says ---------------------------------------------------------------------------------------------

    def advance(self, batches: int | None = None) -> None:
        """Note that a step is done. `state.advance()` and `state.commit()` call this.

        Args:
            batches: the batches of this rank in the step, or samples where there are no batches. None: see `per_step`.
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
        """Set the epoch that comes next. An epoch that ranks have joined keeps what was done of it."""
        self._is_chosen = True
        if self._resumes and epoch == self.epoch:
            return
        self._resumes, self._stands = False, True
        self._move(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position, for any rank of any world with the same data."""
        return {"epoch": self.epoch, "done": self.done, "is_over": self.is_over, "order": self._order()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a position: the next iteration is through the rest of its epoch.

        Raises:
            MismatchError: it is a position in other data, or in another order.
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
        """Begin an iteration: through the chosen epoch, or the rest of the present one, or else the next one.

        Args:
            taken: 0 if the loader calls `take`, None if it cannot.
        """
        if not (self._stands or self._resumes) or (self.is_over and not self._is_chosen):
            self._move(self.epoch + 1)
            self._resumes = False
        elif self._has_begun:  # an earlier iteration through this epoch, without a step: start over
            self._deal()
        self._stands = False
        self._has_begun, self._taken = True, taken

    def read(self, taken: int | None = None) -> None:
        """Note that something was fetched by its index, which does not begin an epoch."""
        if not self._has_begun:
            self._has_begun, self._taken = True, taken

    @property
    def taken(self) -> int:
        """The samples of the epoch that all ranks' loops together have taken, done or not."""
        return int(self._plan.done(self._taken)) if self._plan and self._taken else self.done

    def take(self, batches: int = 1) -> None:
        """Note that the loop takes the next batch."""
        if self._taken is not None:
            self._taken += batches

    def end(self) -> None:
        """Note that the loop asked for another batch after the last one."""
        self._resumes = self._is_chosen = False
        self._last = self._taken
        if self.per_step is None and self._taken is not None:
            self._steps = self._taken
        self._count()

    def check(self, deals: int) -> None:
        """Raise a UsageError for an iterator from before the last deal."""
        if deals != self.deals:
            raise UsageError(
                "this iterator belongs to ranks that are no more, and its samples have been dealt out again: iterate "
                "over the data again"
            )

    def redeal(self, rank: int, ranks: int) -> None:
        """Deal what is left to the ranks of another world."""
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
