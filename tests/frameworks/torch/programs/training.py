"""N ranks on their parts of the data equal one process on all of it; and every rank ends with the same bits."""

import sys
import warnings
from contextlib import nullcontext
from functools import partial

import torch
from checking import batches, check, close, gradients, loss_of, mine, network, parameters, run_checks, same_on_all_ranks
from expecting import raises
from one_process import as_one_process, closure_of, made, plain, train_on, whole, wrapped

import distrun.torch as hvd
from distrun.errors import MismatchError

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
SGD = torch.optim.SGD


def train(make, dtype=torch.float64, wrap=plain, part=whole):
    """Train the small model; what its parameters are afterwards."""
    model = network(dtype)
    optimizer = wrap(make(model.parameters()), model)
    train_on(model, optimizer, *map(part, batches(6, dtype=dtype)))
    return parameters(model)


def together(make, dtype=torch.float64, **options):
    """Train it on all ranks together; return its parameters, which are the same on all."""
    trained = train(make, dtype, partial(wrapped, **options), mine)
    assert same_on_all_ranks(trained)
    return trained


@check
def every_optimizer_gets_the_result_of_one_process():
    optim = torch.optim
    for make in (
        lambda p: optim.SGD(p, 0.1),
        lambda p: optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
        lambda p: optim.Adam(p, 0.01),
        lambda p: optim.AdamW(p, 0.01, amsgrad=True),
        lambda p: optim.Adam(p, 0.01, foreach=True),
        lambda p: optim.Adam(p, 0.01, fused=True),
        lambda p: optim.RMSprop(p, 0.01, momentum=0.5),
        lambda p: optim.Adagrad(p, 0.05),
        lambda p: optim.NAdam(p, 0.01),
    ):
        assert close(together(make), train(make)), make(network().parameters())


@check
def models_of_other_dtypes_train():
    make = lambda p: SGD(p, 0.1, momentum=0.9)  # noqa: E731
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.05), (torch.float16, 0.05)):
        assert close(together(make, dtype), train(make, dtype), tolerance), dtype


@check
def models_of_mixed_dtypes_train():
    model = torch.nn.ModuleList([torch.nn.Linear(4, 4).float(), torch.nn.Linear(4, 4).double()])
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(SGD(model.parameters(), 0.1))
    for step in range(3):
        x = torch.full((2, 4), float(RANK + step))
        model[1](model[0](x).double()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert same_on_all_ranks(parameters(model))


@check
def operators_other_than_average_reduce_as_they_say():
    batch = batches(1)[0]
    rank_gradients = []
    for rank in range(SIZE):
        model = network()
        loss_of(model, (batch[0][rank::SIZE], batch[1][rank::SIZE])).backward()
        rank_gradients.append(gradients(model))
    for op, combine in (
        (hvd.Sum, lambda stack: stack.sum(0)),
        (hvd.Max, lambda stack: stack.amax(0)),
        (hvd.Min, lambda stack: stack.amin(0)),
        (hvd.Product, lambda stack: stack.prod(0)),
    ):
        model, optimizer = made(op=op)
        loss_of(model, mine(batch)).backward()
        assert close(gradients(model), [combine(torch.stack(each)) for each in zip(*rank_gradients, strict=True)]), op
        del optimizer


@check
def adasum_keeps_all_ranks_together():
    model, optimizer = made(op=hvd.Adasum)
    train_on(model, optimizer, *map(mine, batches(4)))
    assert same_on_all_ranks(parameters(model))
    with raises(ValueError, "has no meaning with op=Adasum"):
        optimizer.skip_synchronize()


@check
def half_precision_on_the_wire_changes_little_and_within_a_host_nothing():
    make = lambda p: torch.optim.SGD(p, 0.1)  # noqa: E731
    compressed = together(make, compression=hvd.Compression.fp16)
    assert close(compressed, train(make), 1e-6 if hvd.local_size() == SIZE else 1e-2)


@check
def groups_and_predivision_change_nothing_but_the_way():
    make = lambda p: torch.optim.Adam(p, 0.01)  # noqa: E731
    alone = train(make)
    for options in (
        {"groups": 2},
        {"num_groups": 3},
        {"groups": 100},
        {"gradient_predivide_factor": 4.0},
        {"gradient_predivide_factor": 0.5, "groups": 2},
    ):
        assert close(together(make, **options), alone), options

    def lists(optimizer, model):
        group = [model[0].weight, model[2].bias]
        return hvd.DistributedOptimizer(optimizer, groups=[group], gradient_predivide_factor=float(SIZE))

    assert close(train(make, wrap=lists, part=mine), alone)


@check
def halves_whose_sum_would_overflow_are_averaged():
    for options in ({}, {"gradient_predivide_factor": float(SIZE)}, {"gradient_predivide_factor": 2.0, "groups": 1}):
        parameter = torch.nn.Parameter(torch.zeros(2, dtype=torch.float16))
        optimizer = hvd.DistributedOptimizer(SGD([parameter], 1.0), **options)
        (parameter * 2.0**15).sum().backward()
        assert parameter.grad.tolist() == [2.0**15] * 2, options
        optimizer.step()


class Float16Wire:
    """A user's compressor."""

    calls = 0

    @classmethod
    def compress(cls, tensor):
        cls.calls += 1
        return tensor.half(), tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        return tensor.to(ctx)


@check
def a_compressor_of_the_users_own_is_called_for_every_gradient():
    before = Float16Wire.calls
    compressed = together(lambda p: SGD(p, 0.1), compression=Float16Wire)
    assert Float16Wire.calls == before + 6 * 6
    assert close(compressed, train(lambda p: SGD(p, 0.1)), 1e-2)


@check
def small_buckets_and_memory_layouts_change_nothing():
    torch.manual_seed(2)
    features = torch.randn(4 * SIZE, 3, 8, 8, dtype=torch.float64)

    def run(wrap, part):
        torch.manual_seed(1)
        layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3), torch.nn.Flatten()]
        model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 1)).double().to(memory_format=torch.channels_last)
        optimizer = wrap(SGD(model.parameters(), 0.1, momentum=0.9), model)
        for _ in range(4):
            model(features[part]).square().mean().backward()
            assert model[0].weight.grad.stride() == model[0].weight.stride()
            optimizer.step()
            optimizer.zero_grad()
        return parameters(model)

    alone = run(plain, slice(None))
    for options in ({}, {"groups": 5}):
        assert close(run(partial(wrapped, **options), slice(RANK, None, SIZE)), alone)


@check
def clipping_between_backward_and_step_clips_what_all_ranks_have():
    def run(wrap, part, synchronize):
        model = network()
        optimizer = wrap(SGD(model.parameters(), 0.1), model)
        for batch in batches(4):
            optimizer.zero_grad()
            (loss_of(model, part(batch)) * 50).backward()
            if synchronize:  # as Horovod's users have to
                optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            if synchronize:
                with optimizer.skip_synchronize():
                    optimizer.step()
            else:
                optimizer.step()
        return parameters(model)

    alone = run(plain, whole, False)
    for synchronize in (False, True):
        assert close(run(wrapped, mine, synchronize), alone)


@check
def an_infinity_on_one_rank_makes_all_ranks_skip_the_step():
    model = network(torch.float32)
    optimizer = hvd.DistributedOptimizer(SGD(model.parameters(), 0.1))
    scaler = torch.amp.GradScaler(torch.get_default_device().type, init_scale=1024.0)
    taken = []
    for step, batch in enumerate(batches(4, dtype=torch.float32)):
        before = parameters(model)
        features, targets = mine(batch)
        if step == 1 and RANK == SIZE - 1:
            features = features * torch.inf
        optimizer.zero_grad()
        scaler.scale(loss_of(model, (features, targets))).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        taken.append(not close(parameters(model), before, 0.0))
        assert same_on_all_ranks(parameters(model))
    assert taken == [True, False, True, True]
    assert scaler.get_scale() == 512.0


@check
def closures_see_the_loss_and_gradients_of_all_ranks():
    def run(make, wrap, part):
        model = network()
        optimizer = wrap(make(model.parameters()), model)
        losses = [optimizer.step(closure_of(model, optimizer, part(batch))) for batch in batches(3)]
        return [*parameters(model), torch.stack([loss.detach() for loss in losses])]

    for make in (
        lambda p: SGD(p, 0.1),
        lambda p: torch.optim.LBFGS(p, max_iter=6),
        lambda p: torch.optim.LBFGS(p, max_iter=6, line_search_fn="strong_wolfe"),
    ):
        as_one_process(partial(run, make), tolerance=1e-5)


@check
def a_closure_that_computes_nothing_reduces_nothing_again():
    def run(wrap, part):
        model = network()
        optimizer = wrap(SGD(model.parameters(), 0.1), model, op=hvd.Sum)
        for batch in batches(2):
            optimizer.zero_grad()
            (loss_of(model, part(batch)) / (SIZE if part is mine else 1)).backward()
            optimizer.step(lambda: None)  # as Lightning's optimizers do
        return parameters(model)

    as_one_process(run)


@check
def two_optimizers_of_a_gan_do_not_disturb_each_other():
    def run(wrap, part):
        torch.manual_seed(4)
        generator, judge = (torch.nn.Linear(6, 6).double() for _ in range(2))
        first = wrap(torch.optim.Adam(generator.parameters(), 0.02), generator)
        second = wrap(torch.optim.Adam(judge.parameters(), 0.02), judge)
        for noise, _ in batches(4):
            noise = part((noise, noise))[0]
            judge.zero_grad()  # two backward passes for one step
            (judge(noise + 1) - 1).square().mean().backward()
            judge(generator(noise).detach()).square().mean().backward()
            second.step()
            generator.zero_grad()
            (judge(generator(noise)) - 1).square().mean().backward()  # reaches both models
            first.step()
        return [*parameters(generator), *parameters(judge)]

    as_one_process(run)


@check
def parameters_unused_on_some_ranks_count_as_zero_and_unused_on_all_keep_none():
    for options in ({}, {"groups": 2}, {"compression": Float16Wire}):
        used, sometimes, never = (torch.nn.Linear(3, 3, bias=False).double() for _ in range(3))
        model = torch.nn.ModuleList([used, sometimes, never])
        hvd.broadcast_parameters(model.state_dict(), 0)
        optimizer = hvd.DistributedOptimizer(SGD(model.parameters(), 0.1, weight_decay=0.5), **options)
        untouched = never.weight.detach().clone()
        for step in range(4):
            optimizer.zero_grad()
            loss = used(torch.ones(1, 3, dtype=torch.float64)).sum()
            if step % SIZE == RANK:
                loss = loss + sometimes(torch.ones(1, 3, dtype=torch.float64)).sum()
            loss.backward()
            assert never.weight.grad is None
            assert close([sometimes.weight.grad], [torch.full((3, 3), 1 / SIZE, dtype=torch.float64)], 1e-3)
            optimizer.step()
        assert torch.equal(never.weight, untouched), "weight decay must not touch it"
        assert same_on_all_ranks(parameters(model))
    for op, expected in ((hvd.Sum, 1.0), (hvd.Max, 1.0), (hvd.Min, 0.0), (hvd.Product, 0.0)):
        one, none = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
        optimizer = hvd.DistributedOptimizer(SGD([one, none], 0.1), op=op)
        for _ in range(2):
            optimizer.zero_grad()
            if RANK == 0:
                one.sum().backward()
            optimizer.step()
            assert one.grad.tolist() == [expected] * 2, op
            assert none.grad is None


@check
def a_rank_that_uses_no_parameter_at_all_takes_part_in_step():
    model, optimizer = made()
    for step, batch in enumerate(batches(3)):
        optimizer.zero_grad()
        if RANK == 0 or step == 1:
            loss_of(model, mine(batch)).backward()
        optimizer.step()
    assert same_on_all_ranks(parameters(model))


@check
def different_models_are_an_error_on_every_rank_that_names_the_difference():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 5 + RANK % 2))
    optimizer = hvd.DistributedOptimizer(SGD(model.parameters(), 0.1), model.named_parameters())
    with raises(MismatchError, "1.weight [5, 4] float32", "1.weight [6, 4] float32", "on rank"):
        model(torch.ones(1, 3)).sum().backward()
    model = torch.nn.Sequential(*[torch.nn.Linear(3, 3) for _ in range(1 + (RANK == 0))])
    optimizer = hvd.DistributedOptimizer(SGD(model.parameters(), 0.1), model.named_parameters())
    with raises(MismatchError, "place 2", "1.weight [3, 3] float32", "on rank 0", "missing on rank"):
        model(torch.ones(1, 3)).sum().backward()
    del optimizer


@check
def an_error_of_a_bucket_names_the_line_that_called_backward():
    model, optimizer = made(op=hvd.Average if RANK else hvd.Sum)
    with raises(MismatchError, "bucket.0", "op", f"training.py:{sys._getframe().f_lineno + 1} in an_error_of_a_bucket"):
        loss_of(model, mine(batches(1)[0])).backward()
    del optimizer


@check
def step_after_synchronize_warns_once():
    model, optimizer = made()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for skips in (True, False, False):
            loss_of(model, mine(batches(1)[0])).backward()
            optimizer.synchronize()
            with optimizer.skip_synchronize() if skips else nullcontext():
                optimizer.step()
            assert len(caught) == (not skips)
        loss_of(model, mine(batches(1)[0])).backward()
        optimizer.step()
    assert "skip_synchronize" in str(caught[0].message)
    assert caught[0].filename == __file__
    assert same_on_all_ranks(parameters(model))


@check
def arguments_that_cannot_be_are_refused_in_a_sentence():
    wrap = hvd.DistributedOptimizer
    model = network()
    optimizer = SGD(model.parameters(), 0.1)
    with raises(ValueError, "not Sequential"):
        wrap(model)
    for words, names in {
        "'x' twice": [("x", p) for p in model.parameters()],
        "4 of the optimizer's parameters without a name, the first being parameter 0.2": model[0].named_parameters(),
        "pairs": model.parameters(),
    }.items():
        with raises(ValueError, words):
            wrap(optimizer, names)
    for words, options in {
        "belongs to op=Average": {"op": hvd.Sum, "gradient_predivide_factor": 2.0},
        "backward_passes_per_step=0": {"backward_passes_per_step": 0},
        "groups=-1": {"groups": -1},
        "at most once": {"groups": [[model[0].bias], [model[0].bias]]},
        "is not a reduce op": {"op": "sum"},
    }.items():
        with raises(ValueError, words):
            wrap(optimizer, **options)
    assert type(optimizer) is SGD
    wrap(optimizer)
    with raises(ValueError, "a DistributedOptimizer already"):
        wrap(optimizer)


run_checks()
