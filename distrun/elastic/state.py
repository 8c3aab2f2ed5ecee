"""State: the base of all states of elastic training."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from distrun.elastic.donor import NEW
from distrun.elastic.interrupt import HostsUpdatedInterrupt
from distrun.errors import is_about_lost_rank
from distrun.runtime.world import regroup


class State:
    """The base of all states. A training continues from its state, with any number of ranks.

    To make a state of your own, extend `ObjectState`. Or extend this class as with Horovod: override `save`, `restore`
    and `sync`, which gives all ranks the state of rank 0. Such a state goes back to its last commit whenever a rank is
    lost. Rank 0 is always a survivor, if there is one.
    """

    def __init__(
        self, bcast_object: Callable[..., Any] | None = None, get_rank: Callable[[], int] | None = None
    ) -> None:
        """Make a state.

        Args:
            bcast_object: a function that sends objects, such as `distrun.broadcast_object`.
            get_rank: accepted for Horovod's sake, and not needed.
        """
        self._bcast_object = bcast_object
        self._boundaries = NEW
        self._reset_callbacks: list[Callable[[], object]] = []

    # What training functions call -------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Mark a step boundary: one step is complete, and the next has not begun.

        Nothing is copied. Call it right after `optimizer.step()`, and after counting steps. Then no step is lost when a
        rank dies, and none is made twice.

        Raises:
            HostsUpdatedInterrupt: ranks are to come or go. `elastic.run` catches it.
        """
        self.mark()
        if regroup.planned() is not None:
            raise HostsUpdatedInterrupt

    def check_host_updates(self) -> None:
        """Do what `advance` does, by Horovod's name."""
        self.advance()

    def commit(self) -> None:
        """Mark a step boundary, and keep a copy of the state to go back to.

        The copy is needed only if training changes weights without marking boundaries. Then a rank that is lost in
        between costs the steps since the last commit, which are made again.

        Raises:
            HostsUpdatedInterrupt: as `advance` does.
        """
        self.mark()
        self.save()
        if regroup.planned() is not None:
            raise HostsUpdatedInterrupt

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Call these functions whenever the ranks have changed, on the ranks that were there before.

        They run with the new rank and size, before the ranks take the donor's state. So they may adjust the learning
        rate to the new size. Newcomers do not call them. They may use collectives only if newcomers start the same ones
        between `init` and `elastic.run`, as in Horovod's example of Keras, which trains for one step in both places.
        """
        self._reset_callbacks.extend(callbacks)

    # What `elastic.run` calls -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start counting boundaries. This process is a newcomer, even if its script has used the state before."""
        self._boundaries = NEW

    def on_reset(self) -> None:
        """Call `reset` and the callbacks, after this process has come from one generation into the next."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def reset(self) -> None:
        """Adjust to the new ranks. Classes that extend this one may override it."""

    def recover(self, is_aborted: bool) -> None:
        """Make it a state that training can continue from. Called on each rank when a generation begins, before
        `on_reset`, `elect` and `sync`. It must not communicate, because newcomers may not have arrived yet.

        Args:
            is_aborted: whether an error has ended the generation before, perhaps in the middle of a step.
        """
        if is_aborted:
            self.restore()

    def elect(self) -> None:
        """Agree with the other ranks on the one whose state all take in `sync`. Here that is always rank 0."""

    def is_abort(self, error: Exception) -> bool:
        """Return whether an exception of the training function says that a rank is lost.

        It does if it is an error of distrun, or was caused by one. Faces of frameworks that replace distrun's errors by
        their own extend this.
        """
        return is_about_lost_rank(error)

    def reason_of(self, error: Exception) -> str:
        """Return the reason that the launcher and other ranks get for an exception that says that a rank is lost."""
        return str(error)

    # What classes override --------------------------------------------------------------------------------------------

    def mark(self) -> None:
        """Count a step boundary."""
        self._boundaries += 1

    def save(self) -> None:
        """Keep a copy of the state."""
        raise NotImplementedError(f"{type(self).__name__} has no save: let it keep a copy of the state")

    def restore(self) -> None:
        """Go back to the copy that `save` has kept."""
        raise NotImplementedError(f"{type(self).__name__} has no restore: let it go back to what save has kept")

    def sync(self) -> None:
        """Give all ranks the same state."""
        raise NotImplementedError(f"{type(self).__name__} has no sync: let it give all ranks the state of rank 0")
