"""DiLoCo and local SGD: the ranks of each host train together, and hosts exchange what they have learned now and then.

What they compute is compared with all hosts in one process.
"""

import copy
from functools import partial

import torch
from checking import check, run_checks, same_on_all_ranks
from digits import accuracy_with
from expecting import raises

import distrun.torch as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
HOSTS = hvd.local_size() < SIZE


def model_of():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 90), torch.nn.Tanh(), torch.nn.Linear(90, 60), torch.nn.Linear(60, 1))


def loss_of(model, step, rank):
    inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(1000 * step + rank))
    return (model(inputs) - inputs.sum(1, keepdim=True).sin()).square().mean()


def inner_of(model):
    return torch.optim.SGD(model.parameters(), 0.05, momentum=0.5)


def train(optimizer, model, steps, first=0):
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss_of(model, step, RANK).backward()
        optimizer.step()


def made(**options):
    """A model and its optimizer."""
    model = model_of()
    return model, hvd.DiLoCo(inner_of(model), **options)


def hosts():
    """The ranks of each host, by the set that DiLoCo trains in."""
    probe = hvd.DiLoCo(inner_of(model_of()))
    return list(dict.fromkeys(hvd.allgather_object(tuple(probe.process_set.ranks))))


def simulated(steps, every, fragments, overlap, rate=0.7, momentum=0.9, delays=()):
    """Train all hosts here by the published algorithm; return the parameters of this rank's host."""
    groups = hosts()
    models = [model_of() for _ in groups]
    optimizers = [inner_of(model) for model in models]
    anchor = model_of()
    outer = torch.optim.SGD(anchor.parameters(), rate, momentum, nesterov=momentum > 0)
    names = list(anchor.state_dict())
    due = {(number + 1) * every // len(fragments) % every: number for number in range(len(fragments))}
    waiting = []
    for step in range(1, steps + 1):
        for ranks, model, optimizer in zip(groups, models, optimizers, strict=True):
            optimizer.zero_grad()
            sum(loss_of(model, step - 1, rank) for rank in ranks).div(len(ranks)).backward()
            optimizer.step()
        for until, number, sent in [each for each in waiting if each[0] == step]:
            waiting.remove((until, number, sent))
            use(number, sent, fragments, names, groups, models, anchor, outer, overlap)
        number = due.get(step % every)
        if number is not None:
            sent = [{name: model.state_dict()[name].clone() for name in fragments[number]} for model in models]
            if overlap:
                waiting.append((step + delays[number], number, sent))
            else:
                use(number, sent, fragments, names, groups, models, anchor, outer, overlap)
    own = next(place for place, ranks in enumerate(groups) if RANK in ranks)
    return list(models[own].state_dict().values())


@torch.no_grad()
def use(number, sent, fragments, names, groups, models, anchor, outer, overlap):
    outer.zero_grad()
    parameters = dict(anchor.named_parameters())
    for name in fragments[number]:
        moved = sum(len(ranks) * (parameters[name] - each[name]) for ranks, each in zip(groups, sent, strict=True))
        parameters[name].grad = moved / SIZE
    outer.step()
    for model, each in zip(models, sent, strict=True):
        for name in fragments[number]:
            own = model.state_dict()[name]
            own.copy_(own + parameters[name] - each[name] if overlap else parameters[name])


def check_equal(model, expected):
    for own, other in zip(model.state_dict().values(), expected, strict=True):
        assert torch.allclose(own, other, rtol=1e-4, atol=1e-6), float((own - other).abs().max())


NAMES = list(model_of().state_dict())
WHOLE, HALVES = [NAMES], [NAMES[:2], NAMES[2:]]  # the middle matrix has nearly all elements


@check
def hosts_that_wait_compute_what_is_published():
    for parts in (WHOLE, HALVES):
        model = model_of()
        options = {"wire": None, "overlap": False, "every": 6, "fragments": len(parts)}
        train(hvd.DiLoCo(inner_of(model), model.named_parameters(), **options), model, 20)
        check_equal(model, simulated(20, 6, parts, overlap=False))


@check
def a_step_that_one_host_skips_counts_as_a_step():
    for kind in (torch.optim.SGD, torch.optim.Adam, partial(torch.optim.SGD, fused=True)):
        plain, scaled = model_of(), model_of()
        options = {"wire": None, "overlap": False, "every": 4, "fragments": 1}
        optimizers = [hvd.DiLoCo(kind(model.parameters(), 0.05), **options) for model in (plain, scaled)]
        is_skipping = HOSTS and RANK in hosts()[0]
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(10):
            for model, optimizer in zip((plain, scaled), optimizers, strict=True):
                optimizer.zero_grad()
                loss = loss_of(model, step, RANK)
                skips = is_skipping and step in (3, 8)
                if model is plain:
                    (loss * (0.0 if skips else 1.0)).backward()
                    if skips:  # by gradients of zero Adam would change something
                        optimizer.zero_grad()
                    optimizer.step()
                    continue
                scaler.scale(loss * (float("inf") if skips else 1.0)).backward()
                if step % 2:
                    scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
        check_equal(scaled, list(plain.state_dict().values()))
        assert scaler.get_scale() == (256.0 if is_skipping else 1024.0)
        assert optimizers[1]._outer.step == 10


@check
def what_was_learned_while_a_fragment_travels_is_kept():
    for every, parts, delays in ((6, HALVES, (3, 3)), (24, WHOLE, (10,)), (5, HALVES, (3, 2))):
        model, optimizer = made(wire=None, every=every, fragments=len(parts))
        train(optimizer, model, 40)
        check_equal(model, simulated(40, every, parts, overlap=True, delays=delays))
        first = optimizer.process_set.ranks[0]
        assert torch.equal(
            model[0].weight, hvd.broadcast(model[0].weight.detach(), first, process_set=optimizer.process_set)
        )


@check
def local_sgd_averages_the_parameters():
    model = model_of()
    optimizer = hvd.LocalSGD(inner_of(model), every=4)
    train(optimizer, model, 8)
    assert same_on_all_ranks(list(model.parameters()))
    check_equal(model, simulated(8, 4, WHOLE, overlap=False, rate=1.0, momentum=0.0))
    train(optimizer, model, 3, first=8)
    assert same_on_all_ranks(list(model.parameters())) != HOSTS
    own = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer.merge()
    assert same_on_all_ranks(list(model.parameters()))
    check_equal(model, [hvd.allreduce(parameter) for parameter in own])


@check
def all_hosts_have_the_same_bits_after_an_outer_step():
    for wire in ("int4", "int8", "bfloat16", None):
        model = model_of()
        optimizer = hvd.DiLoCo(
            torch.optim.AdamW(model.parameters(), 1e-2), every=4, fragments=1, overlap=False, wire=wire
        )
        train(optimizer, model, 3)
        assert same_on_all_ranks(list(model.parameters())) != HOSTS
        train(optimizer, model, 1, first=3)
        assert same_on_all_ranks(list(model.parameters())), wire
        state = optimizer.state_dict()["outer_steps"]
        assert same_on_all_ranks(state["anchors"] + state["velocities"])


@check
def what_quantisation_takes_is_made_up_for():
    exact, quantised = model_of(), model_of()
    for model, wire in ((exact, None), (quantised, "int4")):
        optimizer = hvd.DiLoCo(inner_of(model), every=4, fragments=2, wire=wire)
        train(optimizer, model, 100)
        optimizer.merge()
    with torch.no_grad():
        losses = [sum(loss_of(model, 5000, rank) for rank in range(9)) / 9 for model in (exact, quantised)]
    assert losses[1] < 1.05 * losses[0], losses


@check
def models_learn_digits():
    for name, wrap in {
        "diloco": lambda inner: hvd.DiLoCo(inner, every=10, momentum=0.5, warmup=20),
        "waiting": lambda inner: hvd.DiLoCo(inner, every=10, momentum=0.5, overlap=False, wire="int8"),
        "local sgd": lambda inner: hvd.LocalSGD(inner, every=10),
    }.items():
        accuracy = accuracy_with(wrap)
        assert accuracy > 0.87, (name, accuracy)


@check
def warm_up_steps_are_synchronous():
    model, other = model_of(), model_of()
    optimizer = hvd.DiLoCo(inner_of(model), every=4, fragments=2, overlap=False, wire=None, warmup=5)
    train(optimizer, model, 5)
    train(hvd.DistributedOptimizer(inner_of(other)), other, 5)
    check_equal(model, list(other.state_dict().values()))
    assert same_on_all_ranks(list(model.parameters()))
    train(optimizer, model, 1, first=5)
    assert same_on_all_ranks(list(model.parameters())) != HOSTS
    train(optimizer, model, 3, first=6)
    assert optimizer.state_dict()["outer_steps"]["versions"] == [1, 1]


@check
def a_state_goes_on_with_the_same_bits():
    model, optimizer = made(every=4, fragments=2, wire=None)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
    train(optimizer, model, 9)
    optimizer.merge()
    scheduler.step()
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), scheduler.state_dict()])
    again, loaded = made(every=4, fragments=2, wire=None)
    loaded_scheduler = torch.optim.lr_scheduler.StepLR(loaded, 3, 0.9)
    for target, state in zip((again, loaded, loaded_scheduler), saved, strict=True):
        target.load_state_dict(state)
    for each, trained in ((optimizer, model), (loaded, again)):
        train(each, trained, 7, first=9)
        each.merge()
    assert all(map(torch.equal, model.parameters(), again.parameters()))
    _, other = made(every=8, fragments=3)
    other.load_state_dict(saved[1])
    assert other.state_dict()["outer_steps"]["step"] == 9


@check
def a_scheduler_made_before_and_closures_work():
    model = model_of()
    plain = inner_of(model)
    scheduler = torch.optim.lr_scheduler.StepLR(plain, 2, 0.5)
    optimizer = hvd.DiLoCo(plain, every=2, fragments=1, overlap=False)
    for step in range(4):

        def closure(step=step):
            optimizer.zero_grad()
            loss = loss_of(model, step, RANK)
            loss.backward()
            return loss

        assert float(optimizer.step(closure)) > 0
        scheduler.step()
    assert optimizer.state_dict()["outer_steps"]["versions"] == [2]
    assert scheduler.get_last_lr() == [0.05 / 4]
    assert same_on_all_ranks(list(model.parameters()))


@check
def half_precision_and_sparse_gradients_train():
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Embedding(40, 8, sparse=True), torch.nn.Linear(8, 1)).bfloat16()
    optimizer = hvd.DiLoCo(torch.optim.SGD(model.parameters(), 0.1), every=2, fragments=2, overlap=False)
    for step in range(8):
        optimizer.zero_grad()
        model(torch.arange(step, step + 9) % 40).float().square().mean().backward()
        optimizer.step()
    optimizer.merge()
    assert same_on_all_ranks(list(model.parameters()))


@check
def ranks_that_begin_apart_are_refused():
    model = model_of()
    with torch.no_grad():
        model[0].weight[0, 0] += RANK
    optimizer = hvd.DiLoCo(inner_of(model))
    with raises(ValueError, "broadcast_parameters"):
        train(optimizer, model, 1)


@check
def ranks_with_different_settings_are_refused():
    for name, values in {"every": (8, 16), "outer_lr": (0.7, 0.8), "overlap": (True, False), "warmup": (3, 0)}.items():
        options = {"fragments": 2, name: values[RANK == SIZE - 1]}
        model, optimizer = made(**options)
        text = f"rank 0 was given {name}={values[0]}, rank {SIZE - 1} {name}={values[1]}; give all ranks the same"
        with raises(ValueError, text):
            train(optimizer, model, 1)


@check
def what_cannot_be_is_refused_in_a_sentence():
    for match, options in {
        "every=0 must be a whole number, 1 or more": {"every": 0},
        "fragments=9 cannot take turns within every=8": {"every": 8, "fragments": 9},
        "fragments=7 is more than the 6 parameters": {"fragments": 7},
        "wire='int3' is not a type of the wire": {"wire": "int3"},
        "outer_lr=0 must be": {"outer_lr": 0},
        "momentum=1 must be": {"momentum": 1},
        "warmup=-1 must be": {"warmup": -1},
    }.items():
        with raises(ValueError, match):
            made(**options)
    _, optimizer = made()
    with raises(ValueError, "DistributedOptimizer already"):
        hvd.DiLoCo(optimizer)
    with raises(ValueError, "before, not after"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(3))]})
    with raises(ValueError, "wraps a torch.optim.Optimizer"):
        hvd.DiLoCo(model_of(), fragments=1)
    whole = torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    with raises(ValueError, "averages real numbers"):
        hvd.DiLoCo(torch.optim.SGD([whole], 0.1), fragments=1)
    other = hvd.DiLoCo(torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))], 0.1), fragments=1)
    model, state = made()
    train(state, model, 1)
    plain = {**torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))], 0.1).state_dict()}
    with raises(ValueError, "load it with the model"):
        other.load_state_dict({**plain, "outer_steps": state.state_dict()["outer_steps"]})


run_checks()
