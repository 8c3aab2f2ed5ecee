"""ErrorFeedback: the residuals of compressed gradients, as an object to save in checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from distrun.errors import UsageError
from distrun.graphs import residuals as residuals
from distrun.graphs.prepared import prepare
from distrun.graphs.residuals import Residuals
from distrun.runtime.collectives.call import Call
from distrun.runtime.collectives.objects import allgather_object
from distrun.runtime.collectives.residuals import Residual
from distrun.runtime.world import world

_NAME = "error_feedback"


class ErrorFeedback:
    """The residuals of gradients that `Compression.int4` and `.powersgd` have not sent yet.

        checkpoints.save(step, params=params, feedback=distrun.ErrorFeedback())
        start = checkpoints.restore(params=params, feedback=distrun.ErrorFeedback())

    It covers all gradients that this process reduces. Its state is the average over the ranks, so that a job with any
    number of ranks can continue from it. Residuals are matched with gradients by the names, shapes and dtypes of their
    variables. Saving costs one reduction of these gradients, in bfloat16. Residuals within process sets are not
    included. In elastic jobs, each rank keeps its residuals by itself, so do not put this object into a state.
    """

    def __init__(self) -> None:
        self._complete: dict[str, Any] | None = None

    @contextmanager
    def complete_state(self) -> Iterator[None]:
        """Within this context, `state_dict()` has the average over the ranks. All ranks must enter it together.

        `distrun.checkpoint` enters it by itself.

        Raises:
            CollectiveError: see `distrun.allreduce`.
        """
        residuals.finish()
        merged = _merged(residuals.residuals())
        self._complete = {
            name: {
                place: {key: value for key, value in residual._asdict().items() if value is not None}
                for place, residual in places.items()
            }
            for name, places in merged.items()
        }
        try:
            yield
        finally:
            self._complete = None

    def state_dict(self) -> dict[str, Any]:
        """Return the average residuals of all ranks.

        For each list of gradients, and each place in it, it has `lost`, a float32 array of the gradient's shape, and
        with PowerSGD `q`.

        Raises:
            UsageError: it is called outside of `complete_state`.
        """
        if self._complete is None:
            raise UsageError(
                "an ErrorFeedback has a state only within `with feedback.complete_state():`, which all ranks enter: "
                "save it with distrun.checkpoint, which does so, and leave it out of elastic states"
            )
        return self._complete

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replace all residuals by those that `state_dict` returned."""
        residuals.finish()
        residuals.load(
            {
                name: {
                    int(place): Residual(residual.get("lost"), residual.get("q")) for place, residual in places.items()
                }
                for name, places in state_dict.items()
            }
        )


def _merged(own: Residuals) -> Residuals:
    """Return the average over the ranks of the residuals that any of them has."""
    if not world.is_initialized() or world.size() == 1:
        return own
    mine = {
        (name, place): (residual.lost.shape, residual.q is not None)
        for name, places in own.items()
        for place, residual in places.items()
        if residual.lost is not None
    }
    everybody = allgather_object(mine, f"{_NAME}.losses")
    shapes = {key: shape for ranks in everybody for key, (shape, _) in ranks.items()}
    keys = sorted(shapes)
    if not keys:
        return {}
    arrays = [
        np.array(own[key[0]][key[1]].lost if key in mine else np.zeros(shapes[key]), np.float32).reshape(-1)
        for key in keys
    ]
    call = Call("allreduce", f"{_NAME}.average", wire="bfloat16")
    prepare(call, ("float32",) * len(keys), tuple([shapes[key] for key in keys])).reduce(arrays, arrays)
    merged: Residuals = {}
    for (name, place), array in zip(keys, arrays, strict=True):
        # All ranks must save the same Q. If a new rank has none yet, none is saved, and all begin with a new one.
        has_q = all(ranks.get((name, place), (None, False))[1] for ranks in everybody)
        q = own[name][place].q if has_q else None
        merged.setdefault(name, {})[place] = Residual(array.reshape(shapes[name, place]), q)
    return merged
