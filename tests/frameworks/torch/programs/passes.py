"""Backward passes of all kinds: accumulating, repeated, nested, failing."""

import copy
import pickle
import warnings

import torch
from checking import batches, check, close, gradients, loss_of, mine, network, parameters, run_checks, same_on_all_ranks
from expecting import raises
from one_process import as_one_process, made, plain, train_on, whole, wrapped
from torch.utils.checkpoint import checkpoint

import distrun.errors as hvd_errors
import distrun.torch as hvd
from distrun.contract.settings import current

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
SGD = torch.optim.SGD


@check
def gradients_are_reduced_when_backward_returns():
    batch = batches(1)[0]
    alone, model = network(), network()
    loss_of(alone, batch).backward()
    optimizer = wrapped(SGD(model.parameters(), 0.1), model)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model, mine(batch)).backward()
        assert close(gradients(model), gradients(alone))
        assert same_on_all_ranks(gradients(model))


@check
def the_wrapped_optimizer_is_the_same_object_with_its_state_and_schedulers():
    def run(wrap, part):
        model = network()
        optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        calls = []
        optimizer.register_step_post_hook(lambda *_: calls.append(1))
        for step, batch in enumerate(batches(6)):
            if step == 2:
                same = wrap(optimizer, model)
                assert same is optimizer
                assert type(optimizer).__name__ == "SGD"
                assert isinstance(optimizer, SGD)
            if step == 4:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            train_on(model, optimizer, part(batch) if step >= 2 else batch)
            scheduler.step()
        assert len(calls) == 6
        return [*parameters(model), torch.tensor(scheduler.get_last_lr())]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        as_one_process(run)


@check
def schedulers_made_after_wrapping_work_too():
    def run(wrap, part):
        model = network()
        optimizer = wrap(SGD(model.parameters(), 0.1), model)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=5)
        for batch in batches(4):
            train_on(model, optimizer, part(batch))
            scheduler.step()
        return parameters(model)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        as_one_process(run)


@check
def a_copy_of_a_wrapped_optimizer_is_a_plain_one():
    _, optimizer = made()
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert type(twin) is SGD
        assert twin.state_dict().keys() == optimizer.state_dict().keys()


def accumulate(wrap, part, how, window=3, count=7):
    """Steps after every `window` backward passes, and a last one for what is left."""
    model = network()
    options = {"backward_passes_per_step": window} if how == "passes" else {}
    optimizer = wrap(SGD(model.parameters(), 0.05, momentum=0.9), model, **options)
    todo = batches(count)
    for number, batch in enumerate(todo, 1):
        last = number % window == 0 or number == count
        if how == "no_sync" and not last and wrap is wrapped:
            with optimizer.no_sync():
                loss_of(model, part(batch)).backward()
        else:
            loss_of(model, part(batch)).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
    return parameters(model)


@check
def accumulated_gradients_are_reduced_once_and_a_partial_window_at_step():
    alone = accumulate(plain, whole, "plainly")
    for how in ("passes", "no_sync", "every time"):
        together = accumulate(wrapped, mine, how)
        assert close(together, alone), how
        assert same_on_all_ranks(together)


@check
def within_no_sync_gradients_stay_local():
    model, optimizer = made()
    batch = mine(batches(1)[0])
    reference = network()
    loss_of(reference, batch).backward()
    with optimizer.no_sync():
        loss_of(model, batch).backward()
    assert close(gradients(model), gradients(reference), 0.0)
    optimizer.step()
    assert same_on_all_ranks(parameters(model))


@check
def the_number_of_passes_per_step_can_be_changed():
    model, optimizer = made()
    optimizer.set_backward_passes_per_step(2)
    batch = batches(1)[0]
    loss_of(model, mine(batch)).backward()
    assert not same_on_all_ranks(gradients(model))
    loss_of(model, mine(batch)).backward()
    assert same_on_all_ranks(gradients(model))
    with raises(ValueError, "backward_passes_per_step='two'"):
        optimizer.set_backward_passes_per_step("two")


@check
def a_second_backward_is_averaged_again_and_refused_for_sums():
    first, second = batches(2)
    alone = network()
    (loss_of(alone, first) + loss_of(alone, second)).backward()
    model, optimizer = made()
    loss_of(model, mine(first)).backward()
    loss_of(model, mine(second)).backward()
    assert close(gradients(model), gradients(alone))
    model, optimizer = made(op=hvd.Sum)
    loss_of(model, mine(first)).backward()
    with raises(ValueError, "op=sum", "no_sync", "backward_passes_per_step"):
        loss_of(model, mine(second)).backward()
    model, optimizer = made(op=hvd.Sum)
    for _ in range(3):
        model.zero_grad()  # not the optimizer's
        loss_of(model, mine(first)).backward()
    optimizer.step()


@check
def both_ways_of_zeroing_gradients_work_and_what_flies_is_never_what_grad_shows():
    def run(wrap, part, set_to_none):
        model = network()
        optimizer = wrap(SGD(model.parameters(), 0.1, momentum=0.9), model)
        for batch in batches(5):
            optimizer.zero_grad(set_to_none=set_to_none)
            before = gradients(model)
            loss_of(model, part(batch)).backward()
            assert (before[0] is None) == set_to_none or not any(p.grad is None for p in model.parameters())
            optimizer.step()
        return parameters(model)

    for set_to_none in (True, False):
        as_one_process(run, set_to_none)
    model, optimizer = made(groups=6)
    early, late = model[4].bias, model[0].weight
    shown = []
    late.register_post_accumulate_grad_hook(
        lambda _: shown.append(None if early.grad is None else early.grad.data_ptr())
    )
    for batch in batches(4):
        optimizer.zero_grad(set_to_none=False)
        loss_of(model, mine(batch)).backward()
        # In a direct pass it may not fly yet.
        assert shown.pop() != early.grad.data_ptr() or current().direct_buckets
        assert same_on_all_ranks(gradients(model))


@check
def what_a_user_does_to_grad_data_stays_with_the_user():
    def run(wrap, part):
        model = network()
        optimizer = wrap(SGD(model.parameters(), 0.1, momentum=0.9), model)
        for batch in batches(4):
            optimizer.zero_grad(set_to_none=False)
            loss_of(model, part(batch)).backward()
            for parameter in model.parameters():
                parameter.grad.data = parameter.grad.data.clone()  # as Module.to does
            optimizer.step()
        return parameters(model)

    as_one_process(run)


class Fails(torch.autograd.Function):
    """Passes its input on, and fails in backward."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("on purpose")


def backward_through(model, batch, fails):
    features, targets = batch
    hidden = Fails.apply(model[0](features)) if fails else model[0](features)
    torch.nn.functional.mse_loss(model[1:](hidden), targets).backward()


@check
def a_backward_pass_that_fails_half_way_is_forgotten():
    for forget in (lambda model, optimizer: optimizer.zero_grad(), lambda model, optimizer: model.zero_grad()):
        for groups in (0, 6):
            model, reference = network(), network()
            optimizer = wrapped(SGD(model.parameters(), 0.1), model, groups=groups)
            plainly = SGD(reference.parameters(), 0.1)
            for number, fails in enumerate((False, True, False, True, False)):
                forget(model, optimizer)
                plainly.zero_grad()
                batch = batches(5)[number]
                if fails:
                    with raises(ArithmeticError):
                        backward_through(model, mine(batch), fails=True)
                    continue
                backward_through(model, mine(batch), fails=False)
                backward_through(reference, batch, fails=False)
                assert same_on_all_ranks(gradients(model))
                assert close(gradients(model), gradients(reference))
                optimizer.step()
                plainly.step()


@check
def a_backward_pass_that_fails_on_one_rank_fails_on_all_and_the_next_is_right():
    model, reference = network(), network()
    optimizer = wrapped(SGD(model.parameters(), 0.1), model, groups=6)
    for number, fails in enumerate((False, True, False)):
        optimizer.zero_grad()
        reference.zero_grad()
        batch = batches(3)[number]
        if fails and RANK == 0:
            with raises(ArithmeticError):
                backward_through(model, mine(batch), fails=True)
        elif fails:
            with raises(hvd_errors.CollectiveError, "failed on another rank"):
                backward_through(model, mine(batch), fails=False)
        else:
            backward_through(model, mine(batch), fails=False)
            backward_through(reference, batch, fails=False)
            assert close(gradients(model), gradients(reference))


@check
def activation_checkpointing_of_both_kinds_is_one_pass():
    def run(wrap, part, reentrant):
        model = network()
        optimizer = wrap(SGD(model.parameters(), 0.1, momentum=0.9), model, groups=3)
        for batch in batches(4):
            features, targets = part(batch)
            features = features.clone().requires_grad_()
            hidden = checkpoint(model[:2], features, use_reentrant=reentrant)
            output = model[4](checkpoint(model[2:4], hidden, use_reentrant=reentrant))
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(output, targets).backward()
            if wrap is wrapped:
                assert same_on_all_ranks(gradients(model))
            optimizer.step()
        return parameters(model)

    for reentrant in (True, False):
        as_one_process(run, reentrant)


@check
def a_model_wholly_within_checkpoints_is_reduced_when_backward_returns():
    model, optimizer = made()
    for batch in batches(3):
        features, targets = mine(batch)
        output = checkpoint(model, features.clone().requires_grad_(), use_reentrant=True)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(output, targets).backward()
        assert same_on_all_ranks(gradients(model))
        optimizer.step()


@check
def a_shared_parameter_sent_too_early_is_an_error_not_a_wrong_result():
    layer = torch.nn.Linear(6, 6)
    first = torch.nn.Linear(6, 6)
    model = torch.nn.ModuleList([first, layer])
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = wrapped(SGD(model.parameters(), 0.1), model, groups=2)

    def backward():
        hidden = first(torch.ones(2, 6) + RANK)
        for _ in range(2):
            hidden = checkpoint(layer, hidden, use_reentrant=True)
        hidden.sum().backward()

    with raises(ValueError, "use_reentrant=False", "no_sync"):
        for _ in range(2):
            optimizer.zero_grad()
            backward()
    for _ in range(2):
        optimizer.zero_grad()
        with optimizer.no_sync():
            backward()
        optimizer.synchronize()
        assert same_on_all_ranks(gradients(model))


@check
def gradients_of_gradients_and_gradients_of_inputs_work():
    def run(wrap, part):
        model = network()
        optimizer = wrap(SGD(model.parameters(), 0.05), model)
        for batch in batches(3):
            features, targets = part(batch)
            features = features.clone().requires_grad_()
            loss = torch.nn.functional.mse_loss(model(features), targets)
            (slope,) = torch.autograd.grad(loss * len(features), features, create_graph=True)
            optimizer.zero_grad()
            (loss + slope.square().sum(1).mean()).backward()
            optimizer.step()
        return parameters(model)

    as_one_process(run)


@check
def ranks_may_have_any_number_of_optimizers_in_the_same_order():
    models = [network() for _ in range(5)]
    optimizers = [wrapped(SGD(model.parameters(), 0.1), model) for model in models]
    batch = mine(batches(1)[0])
    for model in models:
        loss_of(model, batch).backward()
    for optimizer in optimizers:
        optimizer.step()
    assert same_on_all_ranks([p for model in models for p in parameters(model)])


run_checks()
