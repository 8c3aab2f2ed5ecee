"""State: what all states of elastic training can do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from distrun.elastic.donor import NEW
from distrun.elastic.interrupt import HostsUpdatedInterrupt
from distrun.errors import is_about_lost_rank
from distrun.runtime.world import regroup


class State:
    """The base of all states: a state is what a training goes on from, on whichever ranks there are.

    To make one of your own, extend `ObjectState`; or this class, as with Horovod: override `save`, `restore` and
    `sync`, which gives all ranks the state of rank 0. Such a state goes back to its last commit whenever a rank is
    lost; rank 0 is always one that was there before, if any was.
    """

    def __init__(
        self, bcast_object: Callable[..., Any] | None = None, get_rank: Callable[[], int] | None = None
    ) -> None:
        """Make a state.

        Args:
            bcast_object: a function such as `distrun.broadcast_object`, by which objects are sent.
            get_rank: accepted for Horovod's sake, and not needed.
        """
        self._bcast_object = bcast_object
        self._boundaries = NEW
        self._reset_callbacks: list[Callable[[], object]] = []

    # What training functions call -------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Mark a step boundary: all that belongs to a step is done, and nothing of the next has begun.

        Nothing is copied. Call it right after `optimizer.step()`, and after what you count: then no step is lost when a
        rank dies, and none is made twice.

        Raises:
            HostsUpdatedInterrupt: ranks are to come or go; leave it to `elastic.run`.
        """
        self.mark()
        if regroup.planned() is not None:
            raise HostsUpdatedInterrupt

    def check_host_updates(self) -> None:
        """Do what `advance` does; Horovod's name."""
        self.advance()

    def commit(self) -> None:
        """Mark a step boundary, and keep a copy of the state to go back to.

        The copy is needed only if training changes weights in between without marking boundaries: what was done since
        is done again then.

        Raises:
            HostsUpdatedInterrupt: as `advance` does.
        """
        self.mark()
        self.save()
        if regroup.planned() is not None:
            raise HostsUpdatedInterrupt

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Have functions called whenever the ranks have changed, on those that were there before.

        They run when rank and size are the new ones, and before the ranks take the donor's state; so they may adjust
        the learning rate to the new size. Newcomers do not call them: collectives belong here only if newcomers start
        the same ones between `init` and `elastic.run`, as in Horovod's example of Keras, which trains for a step here
        and there.
        """
        self._reset_callbacks.extend(callbacks)

    # What `elastic.run` calls -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start counting: this process is a newcomer, whatever its script has done with the state so far."""
        self._boundaries = NEW

    def on_reset(self) -> None:
        """Call `reset` and the callbacks: this process has come from one generation into the next."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def reset(self) -> None:
        """Adjust to the new ranks; for classes that extend this one."""

    def recover(self, is_aborted: bool) -> None:
        """Make it a state that training can go on from; called on each rank when a generation begins, before
        `on_reset`, `elect` and `sync`. It does not communicate, since newcomers may be still on their way.

        Args:
            is_aborted: whether this process has left the generation before in the middle of something.
        """
        if is_aborted:
            self.restore()

    def elect(self) -> None:
        """Agree with the other ranks whose state all take in `sync`; for classes that choose."""

    def is_abort(self, error: Exception) -> bool:
        """Return whether an exception of the training function says that a rank is lost.

        It does if it is distrun's, or was raised because of one of distrun's. Faces whose framework raises errors of
        its own in our place extend this.
        """
        return is_about_lost_rank(error)

    def reason_of(self, error: Exception) -> str:
        """Return what the launcher and other ranks are told of an exception that says that a rank is lost."""
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
