"""Collectives of jitted functions on the simulated GPU: their order, what the host waits for, and their errors."""

import jax
import jax.numpy as jnp
import numpy as np
import playing
import simulator
from checking import check, close, run_checks
from expecting import raises

import distrun.jax as distrun
from distrun import UsageError
from distrun.graphs.jax import cuda_handler, mechanism
from distrun.runtime.collectives.call import Call

distrun.init()
RANK, SIZE = distrun.rank(), distrun.size()
WHOLE = SIZE * (SIZE + 1) / 2
OWN = jnp.arange(1.0, 5.0) * (RANK + 1)
BASE = np.arange(1.0, 5.0)
RUN = cuda_handler.Queued.run
STREAM = playing.play()
HOST_WAITS = {"eventSynchronize", "streamSynchronize", "deviceSynchronize", "alloc_pinned_memory"}


def total(array, **options):
    # A factor, since a world of one would leave the collective out.
    return distrun.allreduce(array, distrun.Sum, prescale_factor=2.0, **options)


def called(function, *arguments):
    """Return a function's results, and the names of what each collective has called on the GPU."""
    jax.block_until_ready(function(*arguments))  # the first time, NCCL connects and memory is made
    playing.calls.clear()
    results = jax.block_until_ready(function(*arguments))
    return results, list(playing.calls)


@check
def nothing_is_copied_to_the_host_and_the_host_does_not_wait():
    reduced, calls = called(jax.jit(total), OWN)
    close(reduced, 2 * WHOLE * BASE)
    (names,) = calls
    assert not HOST_WAITS & set(names), names
    assert "memcpyAsync" not in names
    assert ("allReduce" in names) is (SIZE > 1)
    if SIZE > 1:
        gathered, (names,) = called(jax.jit(distrun.allgather), OWN)
        close(gathered, np.concatenate([BASE * (rank + 1) for rank in range(SIZE)]))
        assert "allGather" in names
        sent, (more,) = called(jax.jit(lambda x: distrun.broadcast(x, 1)), OWN)
        close(sent, BASE * 2)
        assert "broadcast" in more
        assert not HOST_WAITS & {*names, *more}
        assert "memcpyAsync" not in names, "it is gathered into XLA's memory"


@check
def concrete_arrays_go_the_same_way():
    sums, calls = called(total, {"x": OWN, "half": OWN.astype(jnp.bfloat16), "whole": jnp.int32(RANK)})
    close(sums, {"x": 2 * WHOLE * BASE, "half": 2 * WHOLE * BASE, "whole": 2 * sum(range(SIZE))})
    assert len(calls) == 1
    sent, calls = called(lambda x: distrun.broadcast(x, SIZE - 1), OWN)
    close(sent, BASE * SIZE)
    assert len(calls) == 1
    close(OWN, BASE * (RANK + 1))
    close(jax.jit(lambda x: x + total(OWN))(OWN), 2 * WHOLE * BASE + OWN)
    gathered, calls = called(distrun.allgather, OWN)
    close(gathered, np.concatenate([BASE * (rank + 1) for rank in range(SIZE)]))
    assert not calls, "the number of rows is not known beforehand"


@check
def calls_of_one_program_run_in_its_order():
    def chain(x):
        for number in range(6):
            x = (
                total(x * (number + 1), name="same name")
                if number % 2
                else jnp.sin(total(x)) + total(x.astype("int32"))
            )
        return x, total(x.astype(jnp.bfloat16))

    def plain(values):
        for number in range(6):
            if number % 2:
                values = [2 * sum(value * (number + 1) for value in values)] * SIZE
            else:
                whole = 2 * sum(values)
                values = [jnp.sin(whole) + sum(2 * value.astype("int32") for value in values)] * SIZE
        return values[0]

    result, half = jax.jit(chain)(OWN)
    close(result, plain([jnp.asarray(BASE * (rank + 1), jnp.float32) for rank in range(SIZE)]), 1e-3)
    close(half, 2 * SIZE * np.asarray(result), 2e-2)


@check
def programs_without_a_common_array_run_in_the_order_of_their_calls():
    step = jax.jit(lambda x: total(x, name="step"))
    text = step.lower(OWN).as_text()
    assert "distrun_collective" in text
    assert "jax.token" in text, "the program takes a token from the one before"
    results = [step(OWN * number) for number in range(20)]
    for number, result in enumerate(results):
        close(result, 2 * WHOLE * BASE * number)


@check
def gradients_go_the_same_way():
    slope = jax.jit(jax.grad(lambda x: (total(x) ** 2).sum()))
    gradient, calls = called(slope, OWN)
    close(gradient, 2 * 2 * WHOLE * BASE * 2 * SIZE)
    assert len(calls) == 2
    assert not HOST_WAITS & {name for names in calls for name in names}


@check
def compressions_that_only_the_host_has_are_computed_there():
    if SIZE == 1:
        return  # nothing is sent
    matrix = jnp.ones((64, 64)) * (RANK + 1)
    compression = distrun.Compression.powersgd(rank=1)
    playing.calls.clear()
    gradients = distrun.grad(lambda weights: (weights * matrix).sum(), compression=compression)
    gradient = jax.jit(gradients)(jnp.ones((64, 64)))
    close(gradient, np.full((64, 64), WHOLE / SIZE), 1e-4)
    assert not playing.calls


@check
def an_error_has_its_text_and_the_next_call_is_right():
    if SIZE > 1:
        with raises(jax.errors.JaxRuntimeError, "MismatchError: ", "allreduce", "[3]", "[4]"):
            jax.block_until_ready(jax.jit(total)(jnp.ones(3 + RANK)))
        rows = "same number of rows on all ranks, and they have [2, 3]"
        with raises(jax.errors.JaxRuntimeError, "MismatchError: ", rows, "order.py"):
            jax.block_until_ready(jax.jit(distrun.allgather)(jnp.ones((2 + RANK, 2))))
    close(jax.jit(total)(OWN), 2 * WHOLE * BASE)


@check
def after_an_error_of_a_program_under_way_the_next_ones_fail_alike_until_the_world_is_left():
    if SIZE == 1:
        return  # no ranks can disagree

    @jax.jit
    def slow(matrix, x):
        for _ in range(5):
            matrix = matrix @ matrix / 400
        return total(x + matrix[0, 0])

    jax.block_until_ready(slow(jnp.ones((400, 400)), OWN))
    wrong = slow(jnp.ones((400, 400)), jnp.ones(3 + RANK))
    for later in (lambda: wrong, lambda: jax.jit(total)(OWN)):
        with raises(jax.errors.JaxRuntimeError, "MismatchError: ", "[3]", "[4]"):
            jax.block_until_ready(later())
    mechanism.finish()
    close(jax.jit(total)(OWN), 2 * WHOLE * BASE)


@check
def a_call_on_a_stream_that_is_captured_is_refused():
    array = np.ones(4, np.float32)
    operation = cuda_handler.Queued(Call("allreduce", "captured"), ["float32"], [array.shape])
    simulator.begin_capture(STREAM)
    with raises(UsageError, "CUDA graph"):
        RUN(operation, STREAM.ptr, [array.ctypes.data], [array.ctypes.data])
    simulator.end_capture(STREAM)


run_checks()
