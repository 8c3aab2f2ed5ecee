"""TorchState: what ranks that are not as far take from the one that is, with all kinds of things in a state."""

import copy
from collections import Counter

import torch
from checking import batches, check, loss_of, network, run_checks, same_on_all_ranks
from expecting import raises
from one_process import trained_alone

import distrun.torch as hvd
from distrun.elastic.donor import NEW
from distrun.errors import UsageError
from distrun.runtime.world import world

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
DONOR = 1
STEPS = 3


def take_over(state, boundaries):
    """Have the ranks take the state of the one that is furthest, as at the beginning of a generation."""
    state._boundaries = boundaries
    meet(state, False)


def meet(state, is_aborted):
    """Have the ranks agree on a state, as all do when some have come or are gone."""
    state.recover(is_aborted)
    state.elect()
    state.sync()


def steps_of(rank):
    """The steps that lie behind a rank: the last rank is a newcomer."""
    return STEPS if rank == DONOR else NEW if rank == SIZE - 1 else STEPS - 1


def tensors_of(value):
    """All tensors of a state_dict."""
    if isinstance(value, torch.Tensor):
        return [value]
    entries = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for entry in entries for tensor in tensors_of(entry)]


@check
def all_take_weights_and_the_optimizers_state_from_the_rank_that_is_furthest():
    for make in (
        lambda parameters: torch.optim.Adam(parameters, 0.01),
        lambda parameters: torch.optim.SGD(parameters, 0.01, momentum=0.9),
        lambda parameters: torch.optim.SGD(parameters, 0.01),
        lambda parameters: torch.optim.Adagrad(parameters, 0.01),
        lambda parameters: torch.optim.LBFGS(parameters, 0.01, max_iter=2),
    ):
        model, optimizer = trained_alone(make, max(0, steps_of(RANK)))
        optimizer.param_groups[0]["lr"] = 0.5 + RANK
        state = hvd.elastic.TorchState(model, optimizer, step=steps_of(RANK), seen=[RANK])
        take_over(state, steps_of(RANK))
        assert (state.step, state.seen, state._boundaries) == (STEPS, [DONOR], STEPS)
        assert optimizer.param_groups[0]["lr"] == 0.5 + DONOR
        expected = [tensor.tolist() for tensor in tensors_of([model.state_dict(), optimizer.state_dict()])]
        assert expected == hvd.broadcast_object(expected, DONOR)
        for batch in batches(2):  # and train on alike
            optimizer.zero_grad()
            optimizer.step(lambda batch=batch, model=model: loss_of(model, batch))
        assert same_on_all_ranks(list(model.parameters()))


@check
def nothing_is_sent_where_all_are_as_far():
    model = torch.nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.fill_(RANK)
    state = hvd.elastic.TorchState(model, step=RANK)
    take_over(state, 5)
    assert model.weight.tolist() == [[RANK, RANK]]  # in truth they are the same
    assert state.step == 0


@check
def a_rank_that_has_stepped_since_its_last_boundary_is_no_donor():
    model, optimizer = trained_alone(lambda parameters: torch.optim.SGD(parameters, 0.01), 0)
    state = hvd.elastic.TorchState(model, hvd.DistributedOptimizer(optimizer), step=0)
    state.sync()
    for step in range(2):
        loss_of(model, batches(1)[0]).backward()
        optimizer.step()
        state.step += 1
        if step == 0 or RANK == DONOR:
            state.advance()
        else:
            with torch.no_grad():
                model[0].weight.fill_(9.0)
    assert model[0].weight[0, 0].item() != 9.0 or RANK != DONOR
    meet(state, True)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model[0].weight[0, 0].item() != 9.0
    assert (state.step, state._boundaries) == (2, 2)


@check
def without_a_clean_rank_all_go_back_to_the_best_commit():
    model, optimizer = trained_alone(lambda parameters: torch.optim.Adam(parameters, 0.01), 0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    state = hvd.elastic.TorchState(model, optimizer, scheduler=scheduler, step=0)
    state.sync()
    kept = None
    for _ in range(4):
        loss_of(model, batches(1)[0]).backward()
        optimizer.step()
        scheduler.step()
        state.step += 1
        if state.step == 2:
            state.commit()
            kept = copy.deepcopy([model.state_dict(), optimizer.state_dict(), scheduler.state_dict()])
    meet(state, True)
    assert state.step == 2
    assert scheduler.state_dict() == kept[2]
    now = [model.state_dict(), optimizer.state_dict()]
    assert all(map(torch.equal, tensors_of(now), tensors_of(kept[:2])))
    loss_of(model, batches(1)[0]).backward()  # what is kept is not what is trained
    optimizer.step()
    state.restore()
    assert all(map(torch.equal, tensors_of([model.state_dict(), optimizer.state_dict()]), tensors_of(kept[:2])))


@check
def a_step_that_backward_passes_follow_before_the_boundary_is_undone():
    first, second = network(), network()
    for model in (first, second):
        hvd.broadcast_parameters(model.state_dict(), 0)
    turns = [torch.optim.Adam(model.parameters(), 0.1) for model in (first, second)]
    state = hvd.elastic.TorchState(first=turns[0], second=turns[1], model=first, other=second, step=0)
    state.sync()
    for step in range(3):
        kept = copy.deepcopy([first.state_dict(), turns[0].state_dict()])
        for optimizer, model in zip(turns, (first, second), strict=True):
            optimizer.zero_grad()
            loss_of(model, batches(1)[0]).backward()
            if step < 2 or optimizer is turns[0]:
                optimizer.step()
        if step < 2:
            state.advance()
    assert state._parts["first"]._is_followed
    assert not state._parts["second"]._is_followed  # and costs no copy
    assert state._parts["second"]._before is None
    assert not torch.equal(first[0].weight, kept[0]["0.weight"])
    meet(state, True)
    now = [first.state_dict(), turns[0].state_dict()]
    assert all(map(torch.equal, tensors_of(now), tensors_of(kept)))
    assert state._boundaries == 2
    first_again = copy.deepcopy(tensors_of(now))
    loss_of(first, batches(1)[0]).backward()
    turns[0].step()
    state.abandon()  # the copy that was gone back to is a copy still
    assert all(map(torch.equal, tensors_of([first.state_dict(), turns[0].state_dict()]), first_again))


class Extra(torch.nn.Module):
    """A module with a buffer and with state that is no tensor."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.full((3,), float(RANK)))
        self.words = f"of rank {RANK}"

    def get_extra_state(self):
        return self.words

    def set_extra_state(self, state):
        self.words = state


@check
def buffers_and_extra_state_and_gradient_scalers_travel_too():
    model = torch.nn.ModuleList([Extra(), torch.nn.BatchNorm1d(2)])
    model[1](torch.full((4, 2), float(RANK)))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**RANK)
    off = torch.amp.GradScaler("cpu", enabled=False)
    state = hvd.elastic.TorchState(model, scaler=scaler, off=off)
    scaler._per_optimizer_states[1]["stage"] = "in the middle"
    take_over(state, steps_of(RANK))
    assert model[0].mean.tolist() == [DONOR] * 3
    assert model[0].words == f"of rank {DONOR}"
    assert model[1].running_mean.tolist() == [torch.tensor(0.1 * DONOR).item()] * 2
    assert scaler.get_scale() == 2.0**DONOR
    state.abandon()
    assert not scaler._per_optimizer_states


@check
def what_a_scheduler_holds_keeps_its_type():
    model, optimizer = trained_alone(lambda parameters: torch.optim.SGD(parameters, 0.01), 0)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1 + RANK])
    state = hvd.elastic.TorchState(model, optimizer, scheduler=scheduler)
    take_over(state, steps_of(RANK))
    assert scheduler.milestones == Counter([1 + DONOR])
    assert type(scheduler.milestones) is Counter


@check
def memory_formats_and_dtypes_are_each_ranks_own_affair():
    image = torch.full((2, 3, 4, 4), float(RANK)).contiguous(memory_format=torch.channels_last)
    large = torch.full((1100, 1100), float(RANK))
    model = torch.nn.Module()
    for name, tensor in (
        ("image", image),
        ("large", large),
        ("short", large.bfloat16()),
        ("columns", large[::2, :7].T),
    ):
        model.register_buffer(name, tensor)
    model.register_buffer("empty", torch.empty(0))
    model.register_buffer("flag", torch.tensor(RANK == DONOR))
    take_over(hvd.elastic.TorchState(model), steps_of(RANK))
    for name in ("image", "large", "short", "columns"):
        assert (getattr(model, name) == DONOR).all(), name
    assert model.flag.item() is True
    assert model.image.is_contiguous(memory_format=torch.channels_last)


@check
def another_model_or_another_state_is_an_error_on_the_rank_that_has_it():
    model = torch.nn.Linear(2, 1 if RANK == 0 else 3)
    state = hvd.elastic.TorchState(model)
    parts = hvd.broadcast_object({name: part.describe() for name, part in state._parts.items()})
    if RANK != 0:
        with raises(UsageError, f"Linear.weight is float32[3, 2] on rank {RANK}, and float32[1, 2] on the rank whose"):
            state._adopt(parts)
        with raises(UsageError, f"TorchState is made of model, plain objects, random numbers on rank {RANK}, and of "):
            state._adopt({**parts, "more": None})


@check
def a_seed_in_common_means_numbers_in_common():
    torch.manual_seed(5)
    torch.rand(RANK + 1)
    state = hvd.elastic.TorchState(step=0)
    drawn = torch.get_rng_state()
    state.sync()
    assert torch.equal(torch.get_rng_state(), drawn)  # at the start nothing changes
    if RANK == SIZE - 1:
        state = hvd.elastic.TorchState(step=0)
    take_over(state, steps_of(RANK))
    assert same_on_all_ranks([torch.rand(4)])


@check
def seeds_of_their_own_mean_numbers_of_their_own():
    torch.manual_seed(5 + RANK)
    state = hvd.elastic.TorchState(step=0)
    state.sync()
    drawn = torch.get_rng_state()
    first = torch.rand(4)
    torch.set_rng_state(drawn)
    if RANK == SIZE - 1:
        state = hvd.elastic.TorchState(step=0)
    take_over(state, steps_of(RANK))
    then = torch.rand(4)
    assert torch.equal(first, then) == (RANK < SIZE - 1)
    everyones = hvd.allgather(then.view(1, -1))
    assert len(torch.unique(everyones, dim=0)) == SIZE


@check
def handlers_of_horovods_kind_send_rank_0s_value_themselves():
    class Words:
        def __init__(self, text):
            self.text = text

    class WordsHandler(hvd.elastic.StateHandler):
        def save(self):
            self.saved = self.value.text

        def restore(self):
            self.value.text = self.saved

        def sync(self):
            self.value.text = hvd.broadcast_object(self.value.text, 0)

    before = list(hvd.elastic.get_handler_registry())
    hvd.elastic.set_handler_registry([(Words, WordsHandler), *before])
    state = hvd.elastic.TorchState(torch.nn.Linear(1, 1), words=Words("first"), step=1)
    hvd.elastic.set_handler_registry(before)
    state.sync()
    state.commit()
    state.words.text, state.step = f"of rank {RANK}", 2
    state.recover(True)
    state.elect()
    assert (state.words.text, state.step) == ("first", 1)
    state.words.text, state.step = f"of rank {RANK}", 2 + RANK
    meet(state, False)
    assert (state.words.text, state.step) == ("of rank 0", 2)
    state.words = Words("another")
    assert state._parts["words"].value is state.words
    state.restore()
    assert state.words.text == "another"


@check
def a_part_may_be_exchanged():
    model, optimizer = trained_alone(lambda parameters: torch.optim.SGD(parameters, 0.01), 0)
    state = hvd.elastic.TorchState(model, optimizer)
    state.sync()
    state.optimizer = other = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.step()
    assert state._parts["optimizer"].is_clean()
    other.step()
    assert not state._parts["optimizer"].is_clean()


assert world.generation() == 1
run_checks()
