"""Training on all ranks gives what training in one process on the combined batches gives."""

import shutil
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
from checking import check, close, run_checks, same_on_all_ranks
from expecting import raises

import distrun.jax as distrun
from distrun import MismatchError, UsageError
from distrun.checkpoint import CheckpointManager

distrun.init()
RANK, SIZE = distrun.rank(), distrun.size()


def network(seed=0, width=40):
    """Parameters: many small ones, a large one (which travels alone), one in half precision, a step count and None."""
    random = np.random.default_rng(seed)
    arrays = {
        "first": {"w": random.standard_normal((6, width), np.float32) / 3, "b": np.zeros(width, np.float32)},
        "large": random.standard_normal((width, 600), np.float32) / 8,
        "half": (random.standard_normal((600, 2), np.float32) / 30).astype(jnp.bfloat16),
        "scale": np.float32(1),
        "absent": None,
    }
    return jax.tree.map(jnp.asarray, arrays)


def loss(parameters, batch):
    features, targets = batch
    hidden = jnp.tanh(features @ parameters["first"]["w"] + parameters["first"]["b"]) @ parameters["large"]
    output = jnp.tanh(hidden) @ parameters["half"].astype(jnp.float32) * parameters["scale"]
    return jnp.mean((output - targets) ** 2)


def batches(count=6, rows=8):
    random = np.random.default_rng(3)
    return [
        (random.standard_normal((rows * SIZE, 6), np.float32), random.standard_normal((rows * SIZE, 2), np.float32))
        for _ in range(count)
    ]


def mine(batch):
    return tuple(part[RANK::SIZE] for part in batch)


def train(optimizer, parts):
    @jax.jit
    def step(parameters, state, batch):
        updates, state = optimizer.update(jax.grad(loss)(parameters, batch), state, parameters)
        return optax.apply_updates(parameters, updates), state

    parameters = network()
    state = optimizer.init(parameters)
    for part in parts:
        parameters, state = step(parameters, state, part)
    return parameters, state


def recipe():
    return optax.chain(optax.clip_by_global_norm(0.05), optax.adam(0.05, eps=0.1))


@check
def an_optimizer_equals_one_process_on_the_combined_batches():
    alone, _ = train(recipe(), batches())
    parts = [mine(batch) for batch in batches()]
    together, state = train(distrun.DistributedOptimizer(recipe()), parts)
    assert same_on_all_ranks((together, state))
    close(together, alone, 2e-3)  # one parameter is in bfloat16


@check
def an_optimizer_outside_of_jit_and_its_arguments():
    tree = {"a": jnp.full(3, RANK + 1.0), "none": None, "count": np.zeros(2, jax.dtypes.float0)}
    mean = (SIZE + 1) / 2
    for options, factor in (
        ({}, 1),
        ({"op": distrun.Sum}, SIZE),
        ({"gradient_predivide_factor": 4.0, "compression": distrun.Compression.bf16}, 1),
    ):
        optimizer = distrun.DistributedOptimizer(optax.identity(), **options)
        updates, _ = optimizer.update(tree, optimizer.init(tree), value=3.0)  # an argument for others in a chain
        close(updates["a"], np.full(3, mean * factor))
        assert updates["none"] is None
        assert updates["count"] is tree["count"]


@check
def only_large_gradients_are_quantised_and_what_int4_loses_comes_later():
    tree = {
        "large": jnp.asarray(np.random.default_rng(RANK).standard_normal((80, 100), np.float32)),
        "small": jnp.linspace(0, 1 + RANK, 300),
        "other": jnp.full(5, RANK + 1e-6),
    }
    plain = distrun.DistributedOptimizer(optax.identity())
    exact, _ = plain.update(tree, plain.init(tree))
    largest = 4.5  # of normal numbers, and more than their averages have
    for name, rounding in (("int8", 1 / 254), ("int4", 5 / 18)):  # of the largest of 256
        optimizer = distrun.DistributedOptimizer(optax.identity(), compression=getattr(distrun.Compression, name))
        update = jax.jit(optimizer.update)
        total = 0.0
        for count in range(1, 11):
            updates, _ = update(tree, optimizer.init(tree))
            assert same_on_all_ranks(updates)
            close((updates["small"], updates["other"]), (exact["small"], exact["other"]), 1e-6)
            total += np.asarray(updates["large"], np.float64)
            lost = np.abs(total - count * exact["large"]).max()
            assert (lost > 1e-4) == (distrun.local_size() < SIZE), lost
            assert lost <= (1 if name == "int4" else count) * 4 * rounding * largest, (name, count, lost)


@check
def powersgd_approximates_matrices_and_makes_up_for_what_is_lost():
    tree = {
        "matrix": jnp.asarray(np.random.default_rng(RANK).standard_normal((60, 5, 10), np.float32)),
        "vector": jnp.linspace(0, 1 + RANK, 300),
    }
    plain = distrun.DistributedOptimizer(optax.identity(), op=distrun.Sum)
    exact, _ = plain.update(tree, plain.init(tree))
    optimizer = distrun.DistributedOptimizer(
        optax.identity(), op=distrun.Sum, compression=distrun.Compression.powersgd(2)
    )
    update = jax.jit(optimizer.update)
    total, lost = 0.0, []
    for count in range(1, 101):
        updates, _ = update(tree, optimizer.init(tree))
        assert same_on_all_ranks(updates)
        close(updates["vector"], exact["vector"], 1e-6)
        total += np.asarray(updates["matrix"], np.float64)
        lost.append(np.linalg.norm(total / count - exact["matrix"]) / np.linalg.norm(exact["matrix"]))
    assert np.linalg.matrix_rank(np.asarray(updates["matrix"]).reshape(60, 50)) == 2
    assert lost[-1] < 0.2 < 0.7 < lost[0], lost
    with raises(ValueError, "PowerSGDCompressor(rank=2)", "for the gradients of an optimizer"):
        distrun.allreduce(tree["matrix"], compression=distrun.Compression.powersgd(2))
    with raises(ValueError, "powersgd", "op=adasum", "Average or Sum"):
        distrun.DistributedOptimizer(optax.identity(), op=distrun.Adasum, compression=distrun.Compression.powersgd(2))


@check
def what_compression_takes_is_known_and_comes_back_from_a_checkpoint():
    random = np.random.default_rng(RANK)
    tree = [jnp.asarray(random.standard_normal(shape, np.float32)) for shape in ((70, 100), (60, 4, 40), (100,))]
    plain = distrun.DistributedOptimizer(optax.identity())
    exact, _ = plain.update(tree, plain.init(tree))
    feedback = distrun.ErrorFeedback()

    def begin(compression, predivide):
        optimizer = distrun.DistributedOptimizer(
            optax.identity(), compression=compression, gradient_predivide_factor=predivide
        )
        update = jax.jit(optimizer.update)
        return lambda: [np.asarray(each) for each in update(tree, optimizer.init(tree))[0]]

    def missing(totals, steps):
        with feedback.complete_state():
            (owed,) = feedback.state_dict().values()
        assert set(owed) == {0, 1}  # the third is too small
        for place, loss in owed.items():
            difference = steps * np.asarray(exact[place]) - totals[place]
            limit = 0.02 * np.abs(loss["lost"]).max() + 1e-5 * steps
            assert np.abs(difference - loss["lost"]).max() <= limit, (place, steps)
        return {place: loss["lost"] for place, loss in owed.items()}

    forms = [(distrun.Compression.powersgd(2), 1.0)]
    if distrun.local_size() < SIZE:
        forms += [(distrun.Compression.int4, 1.0), (distrun.Compression.int4, 4.0)]
    for form in forms:
        feedback.load_state_dict({})
        step, totals = begin(*form), [0.0] * 3
        for count in range(1, 4):
            totals = [total + each for total, each in zip(totals, step(), strict=True)]
            lost = missing(totals, count)
        assert max(np.abs(each).max() for each in lost.values()) > 0.01
        folder = distrun.broadcast_object(tempfile.mkdtemp() if RANK == 0 else None)
        with CheckpointManager(folder) as checkpoints:
            checkpoints.save(3, feedback=feedback)
        step()  # which makes up for it, in vain
        CheckpointManager(folder).restore(feedback=distrun.ErrorFeedback())
        for count in (4, 5):
            totals = [total + each for total, each in zip(totals, step(), strict=True)]
            missing(totals, count)
        distrun.barrier()
        if RANK == 0:
            shutil.rmtree(folder)
    with raises(ValueError, "within `with feedback.complete_state():`"):
        feedback.state_dict()


@check
def in_full_precision_the_difference_is_rounding():
    def plain(count):
        return {"w": jnp.linspace(-1.0, 1.0, count).reshape(6, -1), "b": jnp.zeros(count // 6)}

    def error(parameters, batch):
        return jnp.mean((jnp.tanh(batch[0] @ parameters["w"] + parameters["b"]).mean(1) - batch[1][:, 0]) ** 2)

    def run(gradients_of, parts):
        parameters = plain(600)
        step = jax.jit(lambda parameters, batch: gradients_of(error)(parameters, batch))
        for part in parts:
            parameters = jax.tree.map(lambda p, g: p - 0.1 * g, parameters, step(parameters, part))
        return parameters

    alone = run(jax.grad, batches())
    together = run(distrun.grad, [mine(batch) for batch in batches()])
    assert same_on_all_ranks(together)
    close(together, alone, 1e-5)


@check
def gradients_and_values_of_all_ranks():
    batch = batches(1)[0]
    parameters = network()
    value, gradients = jax.jit(jax.value_and_grad(loss))(parameters, batch)
    close(jax.jit(distrun.value_and_grad(loss))(parameters, mine(batch)), (value, gradients), 1e-2)

    def two(first, second, whole):
        return jnp.sum((first + second) * whole), {"rank": RANK + jnp.float32(0)}

    for way in (lambda function: function, jax.jit):
        both = way(distrun.value_and_grad(two, argnums=(0, 1), has_aux=True))
        (total, aux), slopes = both(1.0, 2.0, jnp.full(2, RANK + 1.0))
        # The gradients are the ranks' mean; a value's auxiliary data stays this rank's own.
        close((total, aux["rank"]), (np.float32(3 * (SIZE + 1)), np.float32(RANK)))
        close(slopes, (np.float32(SIZE + 1), np.float32(SIZE + 1)))
        summed, _ = way(distrun.grad(two, has_aux=True, op=distrun.Sum))(1.0, 2.0, jnp.full(2, RANK + 1.0))
        close(summed, np.float32(SIZE * (SIZE + 1)))


@check
def steps_in_a_loop_on_the_device():
    optimizer = distrun.DistributedOptimizer(recipe())
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *[mine(batch) for batch in batches()])

    @jax.jit
    def epoch(parameters, state):
        def step(carry, batch):
            parameters, state = carry
            updates, state = optimizer.update(jax.grad(loss)(parameters, batch), state, parameters)
            return (optax.apply_updates(parameters, updates), state), loss(parameters, batch)

        return jax.lax.scan(step, (parameters, state), stacked)

    (together, _), _ = epoch(network(), optimizer.init(network()))
    alone, _ = train(recipe(), batches())
    assert same_on_all_ranks(together)
    close(together, alone, 2e-3)


@check
def gradients_accumulated_over_several_steps():
    accumulating = optax.MultiSteps(distrun.DistributedOptimizer(optax.sgd(0.1)), 3).gradient_transformation()
    together, _ = train(accumulating, [mine(batch) for batch in batches()])
    alone, _ = train(optax.MultiSteps(optax.sgd(0.1), 3).gradient_transformation(), batches())
    assert same_on_all_ranks(together)
    close(together, alone, 2e-3)


@check
def everybody_starts_from_what_the_root_has():
    tree = {
        "parameters": network(seed=RANK),
        "state": optax.adam(0.1).init(network(seed=RANK)),
        "numpy": np.full(2, RANK, np.float64),
        "numbers": (RANK, RANK + 0.1, RANK == 1),
        "random": jax.random.key(RANK),
        "half": jnp.full(3, RANK, jnp.bfloat16),
    }
    for root in (0, 1):
        received = distrun.broadcast_parameters(tree, root_rank=root)
        close(received["parameters"], network(seed=root))
        assert received["numbers"] == (root, root + 0.1, root == 1)
        assert [type(number) for number in received["numbers"]] == [int, float, bool]
        assert received["numpy"].dtype == np.float64
        close(received["numpy"], np.full(2, root))
        close(jax.random.key_data(received["random"]), jax.random.key_data(jax.random.key(root)))
        assert received["half"].dtype == jnp.bfloat16
        close(received["half"], np.full(3, root))
    assert distrun.broadcast_parameters({}) == {}


@check
def models_that_differ_are_told_apart_by_name():
    own = {"layers": [{"kernel": jnp.ones((3, 4 + RANK))}], "bias": jnp.ones(2)}
    names = ("['layers'][0]['kernel']", "[3, 4] float32", "[3, 5] float32")
    with raises(MismatchError, "the parameters to broadcast", *names):
        distrun.broadcast_parameters(own)
    optimizer = distrun.DistributedOptimizer(optax.sgd(1.0))
    for way in (lambda function: function, jax.jit):
        with raises(MismatchError, "the gradients", *names):
            way(lambda tree: optimizer.update(tree, optimizer.init(tree)))(own)
    with raises(MismatchError, "the gradients", "missing"):
        distrun.grad(lambda tree: sum(tree.values()))(dict.fromkeys("abc"[: 2 + RANK % 2], 1.0))


@check
def what_cannot_be_wrapped_is_refused():
    class Adam:
        pass

    Adam.__module__ = "torch.optim.adam"
    plain = optax.sgd(0.1)
    with raises(UsageError, "torch.optim.adam.", "distrun.torch"):
        distrun.DistributedOptimizer(Adam())
    with raises(UsageError, "optax.GradientTransformation", "builtins.float"):
        distrun.DistributedOptimizer(0.1)
    with raises(UsageError, "already"):
        distrun.DistributedOptimizer(distrun.DistributedOptimizer(plain))
    with raises(UsageError, "gradient_predivide_factor=2.0", "op=sum"):
        distrun.DistributedOptimizer(plain, op=distrun.Sum, gradient_predivide_factor=2.0)
    with raises(UsageError, "compression="):
        distrun.DistributedOptimizer(plain, compression="fp16")
    with raises(UsageError, "['name']", "str", "broadcast_object"):
        distrun.broadcast_parameters({"name": "resnet"})
    with raises(UsageError, "outside"):
        jax.jit(distrun.broadcast_parameters)(jnp.ones(2))
    with raises(UsageError, "root_rank=7"):
        distrun.broadcast_parameters(jnp.ones(2), root_rank=7)


run_checks()
