"""DiLoCo and local SGD: the ranks of a host train together, and hosts average their parameters only now and then.

See `distrun.methods.diloco` for the algorithm and its sources.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import optax

from distrun.errors import UsageError
from distrun.graphs.jax import mechanism
from distrun.jax.optimizer import DistributedOptimizer
from distrun.methods.diloco.fragments import Fragment
from distrun.methods.diloco.merging import merge
from distrun.methods.diloco.optimizer import OuterOptimizer
from distrun.methods.diloco.parameters import HostArrays
from distrun.methods.diloco.settings import OuterSettings
from distrun.runtime.process_sets.process_sets import host_set

__all__ = ["DiLoCo", "LocalSGD"]


class DiLoCo:
    """Makes hosts train by themselves, and average their parameters only now and then.

        params = distrun.broadcast_parameters(params, root_rank=0)
        optimizer = distrun.DiLoCo(optax.adamw(1e-3), params, every=50)
        state = optimizer.init(params)
        for batch in batches:
            params, state = train_step(params, state, batch)  # jitted, with optimizer.update
            params = optimizer.step(params)                   # not jitted; usually returns them unchanged
        params = optimizer.merge(params)

    `init` and `update` belong to a `DistributedOptimizer` for the ranks of this host, and can be compiled. All ranks
    call `step` after each inner step. If an outer step is due, it waits for the parameters, which it copies to the
    host.

    All ranks make the same number of steps. The parameters differ between hosts until `merge`, which all ranks call at
    the end of training, and before parameters are evaluated or saved. An elastic training function begins with `merge`:
    the ranks that were there average their parameters, and new ranks take over the state of the outer steps. (Hosts at
    the most advanced step keep the progress since the last exchange. Other hosts take their parameters.)
    """

    def __init__(
        self,
        optimizer: optax.GradientTransformation,
        params: Any,
        every: int = 50,
        outer_lr: float = 0.7,
        momentum: float = 0.9,
        wire: str | None = "int4",
        overlap: bool = True,
        fragments: int = 4,
    ) -> None:
        """Wrap a transformation, on all ranks. `distrun.torch.DiLoCo` explains the arguments in more detail.

        Args:
            optimizer: the inner optimizer, any `optax.GradientTransformation`.
            params: a pytree of arrays of floating-point numbers, with the same values on all ranks.
            every, outer_lr, momentum: the steps between outer steps, their learning rate and their Nesterov momentum.
            wire, overlap, fragments: how parameters travel between hosts, and whether training continues meanwhile.

        Raises:
            UsageError: an argument is impossible, or there are fewer parameters than fragments.
        """
        settings = OuterSettings(every, outer_lr, momentum, wire or "", bool(overlap), fragments)
        hosts = host_set()
        inner = DistributedOptimizer(optimizer, process_set=hosts)
        self.init, self.update = inner.init, inner.update
        self.process_set = hosts
        """The ranks of this host."""
        self._parameters = _JaxParameters(params)
        self._outer = OuterOptimizer(settings, self._parameters, hosts)
        with self._parameters.of(params):
            self._outer.drop_anchor()

    def step(self, params: Any) -> Any:
        """Count an inner step, take the outer step if one is due, and return the parameters.

        Raises:
            UsageError: the ranks began with different parameters.
            CollectiveError: a rank is gone.
        """
        with self._parameters.of(params) as held:
            self._outer.begin_step()
            self._outer.end_step()
            return held.tree()

    def merge(self, params: Any) -> Any:
        """Return the average of all ranks' parameters. All ranks call this at the same step.

        Raises:
            CollectiveError: a rank is gone.
        """
        with self._parameters.of(params) as held:
            merge(self._outer)
            return held.tree()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the outer steps, in arrays of numpy, for `load_state_dict`."""
        return self._outer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state from `state_dict`.

        Raises:
            UsageError: the state belongs to other parameters.
        """
        self._outer.load_state_dict(state)


def LocalSGD(  # noqa: N802 - the name of the algorithm
    optimizer: optax.GradientTransformation, params: Any, every: int = 50, wire: str | None = None
) -> DiLoCo:
    """Make hosts train by themselves, and average their parameters after every `every` steps.

    This is `DiLoCo` with outer_lr=1, and without momentum, fragments and overlap. See there for the arguments.
    """
    return DiLoCo(optimizer, params, every, 1.0, 0.0, wire, overlap=False, fragments=1)


class _JaxParameters(HostArrays):
    """The leaves of a pytree (see `distrun.methods.diloco.parameters.Parameters`)."""

    def __init__(self, params: Any) -> None:
        paths, self._structure = jax.tree_util.tree_flatten_with_path(params)
        self._leaves: list[Any] = []
        self._params: Any = None
        self._is_changed = False
        for path, leaf in paths:
            dtype = getattr(leaf, "dtype", None)
            if dtype is None or not jax.numpy.issubdtype(dtype, jax.numpy.floating):
                raise UsageError(
                    f"DiLoCo averages arrays of real numbers, and the leaf {jax.tree_util.keystr(path)} is "
                    f"{'of ' + str(dtype) if dtype is not None else 'no array'}: leave it out"
                )
        self.sizes: Sequence[int] = [math.prod(np.shape(leaf)) for _, leaf in paths]
        if any(leaf.dtype == np.float64 for _, leaf in paths):
            self.dtype = np.dtype(np.float64)

    def of(self, params: Any) -> _JaxParameters:
        """Work on `params` in a `with` statement; refuse a structure that differs from the first parameters'."""
        leaves, structure = jax.tree_util.tree_flatten(params)
        if structure != self._structure:
            raise UsageError(
                f"DiLoCo was made for parameters of the structure {self._structure}, and these have {structure}: give "
                "it the same tree in every step"
            )
        self._params, self._leaves, self._is_changed = params, leaves, False
        return self

    def __enter__(self) -> _JaxParameters:
        return self

    def __exit__(self, *_: object) -> None:
        self._params, self._leaves = None, []  # they may be large, and JAX may have donated them

    def tree(self) -> Any:
        """Return the parameters with all changes."""
        return jax.tree_util.tree_unflatten(self._structure, self._leaves) if self._is_changed else self._params

    def read(self, fragment: Fragment, out: Any) -> None:
        for place, part in zip(fragment.places, fragment.parts(out), strict=True):
            part[:] = self._array(place)

    def write(self, fragment: Fragment, flat: Any) -> None:
        for place, part in zip(fragment.places, fragment.parts(flat), strict=True):
            self._replace(place, part.copy())  # JAX may keep using the memory it is given

    def add(self, fragment: Fragment, flat: Any) -> None:
        for place, part in zip(fragment.places, fragment.parts(flat), strict=True):
            self._replace(place, part + self._array(place))

    def _array(self, place: int) -> Any:
        return mechanism.as_numpy(self._leaves[place]).reshape(-1)

    def _replace(self, place: int, flat: Any) -> None:
        leaf = self._leaves[place]
        array = flat.reshape(np.shape(leaf)).astype(leaf.dtype, copy=False)
        self._leaves[place] = mechanism.placed(array, leaf)
        self._is_changed = True
