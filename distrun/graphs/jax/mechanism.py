"""The way that a collective takes: at once where its arrays are concrete, or into the program that JAX is tracing.

There are two mechanisms for programs, `primitive` and `callback`. The first is tried once before it is used; where it
does not work, with a JAX to come, the second takes over. `DISTRUN_JAX_CALL` (auto, ffi, io_callback) chooses.

Collectives run on the CPU. Where JAX computes on a GPU, programs take `callback`, for which JAX copies the arrays to
host memory and the results back; so it does for those on the spot.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from distrun.contract import settings
from distrun.contract.settings import JAX_CALL
from distrun.contract.topology import Topology
from distrun.errors import UsageError
from distrun.graphs import residuals as residuals
from distrun.graphs.jax import callback
from distrun.graphs.jax.arrays import perform, perform_evenly
from distrun.graphs.jax.derivatives import Perform
from distrun.graphs.jax.shapes import PROBE
from distrun.runtime.collectives.call import Call
from distrun.runtime.world import world

_log = logging.getLogger("distrun")


def call(arrays: Sequence[Any], collective: Call) -> list[Any]:
    """The results of a collective on arrays of JAX, inside or outside of its transformations.

    Inside `jit`, all collectives run in program order, and each rank must reach the same ones. An allgather on the spot
    takes arrays that differ in the number of rows; inside, all must have the same.

    Raises:
        CollectiveError: see `Handle.wait`; from inside a program it comes as JAX's own error, with this one's name and
            text.
        UsageError: the arrays or the arguments do not fit the collective.
    """
    if not is_traced(arrays):
        return on_the_spot(perform, arrays, collective)
    if collective.process_set.stays_one() and collective.prescale == collective.postscale == 1.0:
        return list(arrays)
    if not collective.name:
        collective = collective._replace(name=f"jax.{collective.kind}")
    return _mechanism()(arrays, collective)


def is_traced(arrays: Sequence[Any]) -> bool:
    """Whether some of the arrays are stand-ins in a program that JAX is making, or in one of its other
    transformations."""
    return any(isinstance(array, jax.core.Tracer) for array in arrays)


def on_the_spot(
    function: Callable[[Call, Sequence[Any]], Sequence[Any]], arrays: Sequence[Any], collective: Call
) -> list[Any]:
    """Call `function` on arrays that are at hand; the results are where the arrays are.

    A program that is still running may have a collective of the same name, so these have names of their own.
    """
    own = collective._replace(name=collective.name and f"eager.{collective.name}")
    results = function(own, [as_numpy(array) for array in arrays])
    return [placed(result, array) for result, array in zip(results, arrays, strict=True)]


def as_numpy(array: Any) -> Any:
    """The elements of an array at hand, on the CPU without a copy."""
    if not getattr(array, "is_fully_addressable", True):
        raise UsageError(
            f"an array spread over several processes ({array.sharding}) cannot travel: use JAX's own collectives for it"
        )
    return np.asarray(array)


def placed(result: Any, like: Any) -> Any:
    """`result` as an array of JAX, where `like` was if the user has put it there."""
    if getattr(like, "committed", False):
        return jax.device_put(result, like.sharding)
    return jnp.asarray(result)


# Choosing ------------------------------------------------------------------------------------------------------------


@cache
def _mechanism() -> Perform:
    """The way into programs. Found when first needed: to try it is to start JAX, which is the user's to set up
    before."""
    choice = settings.current().jax_call
    _trace_anew_if_moved()
    world.on_joining(_trace_anew_if_moved)
    residuals.before_reading(finish)
    atexit.register(finish)  # before world.shutdown, which was registered before
    if world.is_elastic():
        world.on_leaving(finish)  # or a program under way would be taken for one of the next generation
    if choice == "io_callback" or (choice == "auto" and jax.default_backend() != "cpu"):
        return callback.call
    try:
        return _tried_primitive()
    except Exception as error:  # whatever JAX has changed
        if choice == "ffi":
            raise UsageError(
                f"{JAX_CALL}=ffi does not work with jax {jax.__version__} ({error}): unset it or use io_callback"
            ) from error
        _log.warning(
            "collectives in programs of jax %s go the slower way, by io_callback (%s: %s); %s=io_callback silences "
            "this",
            *(jax.__version__, type(error).__name__, error, JAX_CALL),
        )
        return callback.call


_traced_at: Topology | None = None


def _trace_anew_if_moved() -> None:
    """Have all programs traced again in a generation in which this rank's place is another one.

    What their code asked about the world when they were traced is a constant in them.
    """
    global _traced_at
    before, _traced_at = _traced_at, world.topology()
    if before not in (None, _traced_at):
        jax.clear_caches()


def _tried_primitive() -> Perform:
    """The primitive, if it works with this JAX. Tried in a thread, where no transformation is under way."""
    from distrun.graphs.jax import primitive  # may not even be importable with another JAX

    # Before installing: what JAX refuses then does not keep it from starting.
    device = jax.local_devices(backend="cpu")[0]
    primitive.install(lambda arrays, collective: on_the_spot(perform_evenly, arrays, collective))
    with ThreadPoolExecutor(1) as thread:
        outcome = thread.submit(_try, primitive.call, device).result()
    if outcome != [8.0, 4.0, 4.0]:
        raise RuntimeError(f"8, 4 and 4 came out as {outcome}")
    return primitive.call


def _try(call: Perform, device: Any) -> list[float]:
    """Two calls in a row in a program, in all transformations."""

    def function(array: Any) -> Any:
        return call(call([array], Call(PROBE, "first")), Call(PROBE, "second"))[0]

    with jax.default_device(device):
        value, slope = jax.jit(jax.value_and_grad(lambda array: jax.vmap(function)(array).sum()))(
            np.ones(2, np.float32)
        )
        return [float(value), *slope.tolist()]


def finish() -> None:
    """Wait for the programs under way, whose collectives need this rank to be there.

    Programs with effects that JAX knows of can be waited for; of the others, the next program to run is behind them.
    """
    try:
        jax.effects_barrier()
        jax.block_until_ready(jnp.add(0, 0))
    except Exception:  # has been, or will be, raised where their results are used
        pass
