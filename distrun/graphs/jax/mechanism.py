"""The choice of how to execute a collective: at once on concrete arrays, or in the program that JAX is tracing.

There are two mechanisms for programs, `primitive` and `callback`. The first is tried once before it is used. If it does
not work, perhaps with a future JAX, the second is used. `DISTRUN_JAX_CALL` (auto, ffi, io_callback) overrides this.

If JAX computes on a GPU, programs use `callback`, and JAX copies the arrays to host memory and the results back. Eager
collectives are copied in the same way. With `ffi`, programs use `primitive` with the handler for GPUs, which copies
nothing (`cuda_handler`), and so do eager allreduces and broadcasts. It is not the default, because it has not run on a
real GPU yet.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
from distrun.graphs.jax.shapes import PROBE, REDUCING
from distrun.runtime.collectives.call import Call
from distrun.runtime.world import world

_log = logging.getLogger("distrun")


def call(arrays: Sequence[Any], collective: Call) -> list[Any]:
    """Return the results of a collective on arrays of JAX, inside or outside of its transformations.

    Inside `jit`, all collectives run in program order, and all ranks must execute the same ones. An eager allgather
    accepts different numbers of rows on the ranks. Inside a program, all ranks must have the same number.

    Raises:
        CollectiveError: see `Handle.wait`. Inside a program, JAX raises its own error, with this error's name and text.
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
    """Return whether some of the arrays are tracers of a JAX transformation."""
    return any(isinstance(array, jax.core.Tracer) for array in arrays)


def on_the_spot(
    function: Callable[[Call, Sequence[Any]], Sequence[Any]], arrays: Sequence[Any], collective: Call
) -> list[Any]:
    """Call `function` on concrete arrays. The results are on the devices of the arrays.

    A program that is still running may have a collective of the same name, so eager ones get a prefix.
    """
    own = collective._replace(name=collective.name and f"eager.{collective.name}")
    if collective.kind in REDUCING and _are_on_gpu(arrays):
        from distrun.graphs.jax import cuda_handler

        if not cuda_handler.needs_host(own):
            return cuda_handler.reduce(own, arrays)
    results = function(own, [as_numpy(array) for array in arrays])
    return [placed(result, array) for result, array in zip(results, arrays, strict=True)]


def _are_on_gpu(arrays: Sequence[Any]) -> bool:
    """Return whether concrete arrays are all on this rank's GPU, and the handler for GPUs is used."""
    if not arrays or not _has_gpu_handler():
        return False
    device = {_own_gpu()}
    return all(isinstance(array, jax.Array) and array.devices() == device for array in arrays)


def as_numpy(array: Any) -> Any:
    """Return the elements of a concrete array, without a copy if it is on the CPU."""
    if not getattr(array, "is_fully_addressable", True):
        raise UsageError(
            f"an array spread over several processes ({array.sharding}) cannot travel: use JAX's own collectives for it"
        )
    return np.asarray(array)


def placed(result: Any, like: Any) -> Any:
    """Return `result` as an array of JAX, with the sharding of `like` if the user has committed that to a device."""
    if getattr(like, "committed", False):
        return jax.device_put(result, like.sharding)
    return jnp.asarray(result)


# Choosing ------------------------------------------------------------------------------------------------------------


@cache
def _mechanism() -> Perform:
    """Return the mechanism for programs. It is chosen on first use: trying it initialises JAX, which the user must be
    able to configure before."""
    choice = settings.current().jax_call
    _trace_anew_if_moved()
    world.on_joining(_trace_anew_if_moved)
    residuals.before_reading(finish)
    atexit.register(finish)  # runs before world.shutdown, which was registered earlier
    if world.is_elastic():
        world.on_leaving(finish)  # otherwise a program under way would be taken for one of the next generation
    on_gpu = _computes_on_gpu()
    if choice == "io_callback" or (choice == "auto" and on_gpu):
        return callback.call
    try:
        return _tried_primitive(on_gpu)
    except Exception as error:  # JAX's internals may have changed in any way, and a GPU needs cupy, a driver and more
        if choice == "ffi" and not on_gpu:
            raise UsageError(
                f"{JAX_CALL}=ffi does not work with jax {jax.__version__} ({error}): unset it or use io_callback"
            ) from error
        _log.warning(
            "collectives in programs of jax %s go the slower way, by io_callback (%s: %s); %s=io_callback silences "
            "this",
            *(jax.__version__, type(error).__name__, error, JAX_CALL),
        )
        return callback.call


@cache
def _has_gpu_handler() -> bool:
    """Return whether JAX computes on a GPU, and its programs use the handler for GPUs."""
    return _computes_on_gpu() and settings.current().jax_call == "ffi" and _mechanism() is not callback.call


_traced_at: Topology | None = None


def _trace_anew_if_moved() -> None:
    """Clear JAX's caches, so that all programs are traced again, if this rank's topology has changed.

    The facts about the world that a function read when it was traced are constants in its program.
    """
    global _traced_at
    before, _traced_at = _traced_at, world.topology()
    if before not in (None, _traced_at):
        jax.clear_caches()


def _computes_on_gpu() -> bool:
    return jax.default_backend() != "cpu"


def _tried_primitive(on_gpu: bool) -> Perform:
    """Return the primitive's `call` if it works with this JAX. Try it in a thread without pending transformations."""
    from distrun.graphs.jax import primitive  # the import may fail with another JAX

    # Before installing: JAX is then initialised, even if it rejects the primitive.
    devices = [jax.local_devices(backend="cpu")[0], *([_own_gpu()] if on_gpu else [])]
    primitive.install(lambda arrays, collective: on_the_spot(perform_evenly, arrays, collective), on_gpu)
    with ThreadPoolExecutor(1) as thread:
        for device in devices:
            outcome = thread.submit(_try, primitive.call, device).result()
            if outcome != [8.0, 4.0, 4.0]:
                raise RuntimeError(f"8, 4 and 4 came out as {outcome} on {device}")
    return primitive.call


def _own_gpu() -> Any:
    """Return JAX's device for this rank's GPU.

    Raises:
        UsageError: this rank has no GPU that distrun can use, or JAX has another one, or several.
    """
    devices, own = jax.local_devices(), world.engine().gpu().driver.index
    if [device.local_hardware_id for device in devices] != [own]:
        raise UsageError(
            f"JAX has the devices {devices}, and this rank's only GPU is {own}: call init() before JAX computes "
            "anything, or set CUDA_VISIBLE_DEVICES"
        )
    return devices[0]


def _try(call: Perform, device: Any) -> list[float]:
    """Return the results of two consecutive calls in a program, under jit, grad and vmap."""

    def function(array: Any) -> Any:
        return call(call([array], Call(PROBE, "first")), Call(PROBE, "second"))[0]

    with jax.default_device(device):
        value, slope = jax.jit(jax.value_and_grad(lambda array: jax.vmap(function)(array).sum()))(
            np.ones(2, np.float32)
        )
        return [float(value), *slope.tolist()]


def finish() -> None:
    """Wait for the programs under way, whose collectives need this rank.

    JAX can wait for programs with registered effects. The others end before the next program runs, which is waited for.
    After one that failed, all programs with ordered effects would fail as it did, in the next world too, so its token
    is dropped.
    """
    try:
        jax.effects_barrier()
        jax.block_until_ready(jnp.add(0, 0))
    except Exception:  # raised where their results are used
        with suppress(ImportError, AttributeError):  # JAX has no public function for this
            from jax._src import dispatch

            dispatch.runtime_tokens.clear()
