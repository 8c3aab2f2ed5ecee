"""Every collective does what numpy does on everybody's arrays, in a jitted function and outside of one."""

import os

import jax
import jax.numpy as jnp
import numpy as np
from checking import check, close, run_checks
from expecting import raises

import distrun.jax as distrun
from distrun import MismatchError, UsageError

distrun.init()
RANK, SIZE = distrun.rank(), distrun.size()
RANKS = range(SIZE)
DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "bfloat16", "float32", "complex64"]
WAYS = (lambda function: function, jax.jit)
IS_CALLBACK = os.environ.get("DISTRUN_JAX_CALL") == "io_callback"


def array(rank, shape=(2 * SIZE, 3), dtype="float32"):
    """Return the array of any rank; all ranks can compute it."""
    values = np.random.default_rng([rank, len(shape)]).integers(0, 5, shape)
    return jnp.asarray(values, dtype)


def everybodys(shape=(2 * SIZE, 3), dtype="float32"):
    wide = "complex64" if dtype == "complex64" else "float64"
    return np.stack([np.asarray(array(rank, shape, dtype)).astype(wide) for rank in RANKS])


@check
def arrays_of_every_dtype_are_summed_and_gathered_in_one_call():
    def function(arrays):
        return distrun.allreduce(arrays, distrun.Sum), distrun.allgather(arrays)

    own = {dtype: array(RANK, dtype=dtype) for dtype in DTYPES}
    for way in WAYS:
        sums, gathered = way(function)(own)
        for dtype in DTYPES:
            whole = everybodys(dtype=dtype)
            assert sums[dtype].dtype == gathered[dtype].dtype == own[dtype].dtype
            close(sums[dtype], whole.any(0) if dtype == "bool" else whole.sum(0))
            close(gathered[dtype], np.concatenate(whole))


@check
def every_operator_and_the_factors():
    own, whole = array(RANK), everybodys()
    expected = {
        distrun.Average: whole.mean(0),
        distrun.Sum: whole.sum(0),
        distrun.Min: whole.min(0),
        distrun.Max: whole.max(0),
        distrun.Product: whole.prod(0),
    }

    def function(x):
        scaled = distrun.allreduce(x, distrun.Sum, prescale_factor=0.5, postscale_factor=3.0, name="scaled")
        return [distrun.allreduce(x, op) for op in expected], scaled

    for way in WAYS:
        close(way(function)(own), (list(expected.values()), whole.sum(0) * 1.5), 1e-5)


@check
def the_others():
    own, whole = array(RANK), everybodys()
    uneven = array(RANK, (SIZE + 1, 2))
    share = slice(0, 2) if RANK == 0 else slice(RANK + 1, RANK + 2)

    def function(x, y):
        return (
            distrun.broadcast((x, {"y": y}), root_rank=SIZE - 1),
            distrun.reducescatter(x, distrun.Sum),
            distrun.reducescatter(y),
            distrun.alltoall([x, x + 1]),
        )

    exchanged = np.concatenate([each[2 * RANK : 2 * RANK + 2] for each in whole])
    expected = (
        (whole[-1], {"y": everybodys((SIZE + 1, 2))[-1]}),
        whole.sum(0)[2 * RANK : 2 * RANK + 2],
        everybodys((SIZE + 1, 2)).mean(0)[share],
        [exchanged, exchanged + 1],
    )
    for way in WAYS:
        close(way(function)(own, uneven), expected)


@check
def trees_with_all_kinds_of_leaves():
    tree = {
        "scalar": jnp.float32(RANK),
        "number": 1.0 + RANK,
        "whole": RANK,
        "numpy": np.full(3, RANK, np.float32),
        "empty": jnp.zeros((0, 4)),
        "none": None,
        "nothing": (),
        "float0": np.zeros(2, jax.dtypes.float0),
    }
    for way in (lambda function: function, jax.jit):
        given = {name: leaf for name, leaf in tree.items() if name != "float0"} if way is jax.jit else tree
        average = way(distrun.allreduce)(given)
        mean = (SIZE - 1) / 2
        close(average["scalar"], mean)
        close(average["number"], 1 + mean)
        assert average["whole"] == int(mean)
        assert average["whole"].dtype == jnp.int32
        close(average["numpy"], np.full(3, mean))
        assert average["empty"].shape == (0, 4)
        assert average["none"] is None
        assert average["nothing"] == ()
        if way is not jax.jit:
            assert average["float0"] is tree["float0"]
    assert distrun.allreduce({}) == {}
    gathered = jax.jit(distrun.allgather)(jnp.zeros((2, 0)))
    assert gathered.shape == (2 * SIZE, 0)


@check
def outside_of_functions_rows_may_differ():
    close(
        distrun.allgather(jnp.full((RANK + 1, 2), RANK)),
        np.concatenate([np.full((rank + 1, 2), rank) for rank in RANKS]),
    )
    splits = [rank + RANK for rank in RANKS]
    received, rows = distrun.alltoall(jnp.full((sum(splits), 2), RANK), splits)
    close(rows, np.array([RANK + rank for rank in RANKS]))
    close(received, np.concatenate([np.full((RANK + rank, 2), rank) for rank in RANKS]))


@check
def committed_arrays_stay_where_they_are():
    device = jax.devices()[0]
    result = distrun.allreduce(jax.device_put(jnp.ones(3), device))
    assert result.committed
    assert result.devices() == {device}


@check
def wrong_arguments_are_refused():
    with raises(UsageError, "op=5", "distrun.Average"):
        distrun.allreduce(jnp.ones(2), op=5)
    with raises(UsageError, "root_rank=9", f"ranks 0-{SIZE - 1}"):
        distrun.broadcast(jnp.ones(2), root_rank=9)
    with raises(UsageError, "compression=7", "Compression.none, .fp16"):
        distrun.allreduce(jnp.ones(2), compression=7)
    with raises(UsageError, "random.key_data"):
        distrun.allreduce(jax.random.key(0))
    for way in WAYS:
        with raises(UsageError, "0-dimensional", "allgather"):
            way(distrun.allgather)(jnp.float32(1))
        with raises(UsageError, "does not come out even"):
            way(distrun.alltoall)(jnp.ones(SIZE + 1))
        with raises(UsageError, "op=min"):
            way(lambda x: distrun.reducescatter(x, distrun.Min))(jnp.ones(SIZE))
    with raises(UsageError, "alltoall with splits"):
        jax.jit(lambda x: distrun.alltoall(x, [1] * SIZE))(jnp.ones(SIZE))


@check
def ranks_that_disagree_get_an_error_and_can_go_on():
    own = jnp.ones(3 + RANK)
    with raises(MismatchError, "allreduce", "[3]", "[4]"):
        distrun.allreduce(own)
    with raises(jax.errors.JaxRuntimeError, "MismatchError: ", "allreduce", "[3]", "[4]"):
        jax.block_until_ready(jax.jit(distrun.allreduce)(own))
    with raises(jax.errors.JaxRuntimeError, "MismatchError: ", "same number of rows on all ranks", "collectives.py"):
        jax.block_until_ready(jax.jit(distrun.allgather)(own))
    close(jax.jit(distrun.allreduce)(jnp.ones(2)), np.ones(2))


@check
def what_is_not_of_all_ranks_goes_round():
    assert distrun.broadcast_object({"rank": RANK}, root_rank=1) == {"rank": 1}
    assert distrun.allgather_object(RANK) == list(RANKS)


run_checks()
