"""Checks that need a real GPU: torch's streams and graphs, autograd's thread for the GPU, CPU and GPU at once."""

import torch
from checking import (
    batches,
    check,
    close,
    gradients,
    loss_of,
    mine,
    network,
    parameters,
    run_checks,
    same_on_all_ranks as same,
)
from expecting import raises
from one_process import plain, whole
from torch.utils.checkpoint import checkpoint

import distrun.torch as hvd
from distrun.runtime.world.capabilities import communication_memory

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
OWN = torch.device("cuda", torch.cuda.current_device())
SGD = torch.optim.SGD
hvd.allreduce_(torch.ones(1, device=OWN))
IS_STAGED = "pinned staging" in communication_memory()


def on_gpu(batch):
    return tuple(tensor.to(OWN) for tensor in batch)


def train(model, wrap, part, loss=loss_of, count=5):
    optimizer = wrap(SGD(model.parameters(), 0.1, momentum=0.9))
    for batch in batches(count):
        optimizer.zero_grad()
        loss(model, on_gpu(part(batch))).backward()
        optimizer.step()
    return parameters(model)


def equal(together, expected):
    assert close(together, expected)
    assert same(together)


@check
def this_process_uses_its_own_gpu_only():
    for index in range(torch.cuda.device_count()):
        if index != OWN.index:
            assert not torch.cuda.memory_reserved(index)
            with raises(ValueError, f"on cuda:{index} cannot travel", f"cuda:{OWN.index}"):
                hvd.allreduce(torch.ones(1, device=f"cuda:{index}"))


@check
def models_on_cpu_and_gpu_train():
    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.first, self.second, self.last = (torch.nn.Linear(6, 6).double() for _ in range(3))
            self.second.to(OWN)

        def forward(self, features):
            return self.last(self.second(self.first(features).tanh().to(OWN)).tanh().cpu())[:, :2]

    def loss(model, batch):
        return loss_of(model, (batch[0].cpu(), batch[1].cpu()))

    expected = train(Mixed(), plain, whole, loss)
    for options in ({}, {"groups": 2}):
        together = train(Mixed(), lambda o: hvd.DistributedOptimizer(o, **options), mine, loss)  # noqa: B023
        equal(together, expected)


@check
def checkpoints_of_both_kinds_are_one_pass():
    def loss(reentrant):
        def compute(model, batch):
            hidden = checkpoint(model[:2], batch[0].requires_grad_(), use_reentrant=reentrant)
            output = model[4](checkpoint(model[2:4], hidden, use_reentrant=reentrant))
            return torch.nn.functional.mse_loss(output, batch[1])

        return compute

    expected = train(network().to(OWN), plain, whole)
    for reentrant in (True, False):
        model = network().to(OWN)
        together = train(model, lambda o: hvd.DistributedOptimizer(o, groups=3), mine, loss(reentrant))
        equal(together, expected)
        assert same(gradients(model))


@check
def layers_on_side_streams_train():
    side = torch.cuda.Stream()

    def loss(model, batch):
        hidden = model[:2](batch[0])
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            hidden = model[2:4](hidden)
        torch.cuda.current_stream().wait_stream(side)
        return torch.nn.functional.mse_loss(model[4](hidden), batch[1])

    expected = train(network().to(OWN), plain, whole)
    together = train(network().to(OWN), lambda o: hvd.DistributedOptimizer(o, groups=2), mine, loss)
    equal(together, expected)


def warm_up(step):
    """As torch's documentation says, before a capture."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)


@check
def graphs_of_whole_steps_and_of_backward_alone_are_captured():
    if IS_STAGED:  # which a graph cannot contain
        return

    def run(wrap, part, captures, is_whole=True):
        model = network().to(OWN)
        optimizer = wrap(SGD(model.parameters(), 0.1, momentum=0.9))
        static = [tensor.clone() for tensor in on_gpu(part(batches(1)[0]))]

        def captured():
            optimizer.zero_grad(set_to_none=True)
            loss_of(model, static).backward()
            if is_whole:
                optimizer.step()

        warm_up(captured)
        if captures:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured()
        for batch in batches(4):
            for tensor, value in zip(static, on_gpu(part(batch)), strict=True):
                tensor.copy_(value)
            graph.replay() if captures else captured()
            if not is_whole:
                optimizer.step()
        torch.cuda.synchronize()
        return parameters(model)

    for is_whole in (True, False):
        together = run(hvd.DistributedOptimizer, mine, True, is_whole)
        equal(together, run(plain, whole, False, is_whole))
    sums = [run(lambda o: hvd.DistributedOptimizer(o, op=hvd.Sum), mine, captures, False) for captures in (True, False)]
    assert close(*sums)


@check
def graphed_callables_train():
    if IS_STAGED:
        return
    model = network().to(OWN)
    expected = train(network().to(OWN), plain, whole)
    sample = on_gpu(mine(batches(1)[0]))[0].requires_grad_()
    model = torch.cuda.make_graphed_callables(model, (sample,))
    together = train(model, hvd.DistributedOptimizer, mine)
    equal(together, expected)


@check
def gradients_in_channels_last_go_to_a_fused_optimizer():
    def run(wrap, rows):
        torch.manual_seed(3)
        layers = [torch.nn.Conv2d(8, 16, 1), torch.nn.ReLU(), torch.nn.Conv2d(16, 4, 3)]
        model = torch.nn.Sequential(*layers).double().to(OWN, memory_format=torch.channels_last)
        optimizer = wrap(torch.optim.AdamW(model.parameters(), 0.01, fused=True))
        features = torch.randn(4 * SIZE, 8, 6, 6, dtype=torch.float64).to(OWN, memory_format=torch.channels_last)
        for _ in range(3):
            optimizer.zero_grad()
            model(features[rows]).square().mean().backward()
            optimizer.step()
        return parameters(model)

    together = run(hvd.DistributedOptimizer, slice(RANK, None, SIZE))
    equal(together, run(plain, slice(None)))


@check
def objects_arrive_on_the_ranks_own_gpu():
    for tensor in (
        hvd.broadcast_object(torch.ones(2, device=OWN), 0),
        *hvd.allgather_object(torch.ones(2, device=OWN)),
    ):
        assert tensor.device == OWN


@check
def fused_optimizers_and_scaled_losses_take_what_was_reduced():
    model = network(torch.float32).to(OWN)
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), 0.01, fused=True))
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    for batch in batches(4, dtype=torch.float32):
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cuda"):
            loss = loss_of(model, on_gpu(mine(batch)))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        assert same(parameters(model))


run_checks()
