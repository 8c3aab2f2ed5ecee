"""The work on a device: streams, graphs, memory, and models that lie half on the CPU. On the simulated GPU.

float64 tensors play CPU tensors, all others CUDA tensors.
"""

import playing
import simulator
import torch
from checking import batches, check, close, gradients, parameters, run_checks, same_on_all_ranks
from expecting import raises
from one_process import as_one_process

import distrun.torch as hvd
from distrun.errors import MismatchError
from distrun.runtime.world import world
from distrun.runtime.world.capabilities import communication_memory
from distrun.torch import cuda

hvd.init()
playing.play(lambda tensor: tensor.dtype is not torch.float64)
RANK, SIZE = hvd.rank(), hvd.size()
SGD = torch.optim.SGD


class Mixed(torch.nn.Module):
    """Layers on the GPU and on the CPU in turn."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(6, 6).to(t) for t in (torch.float32, torch.float64) * 2])

    def forward(self, features):
        for layer in self.layers:
            features = layer(features.to(layer.weight.dtype)).tanh()
        return features


@check
def models_on_cpu_and_gpu_train():
    def run(wrap, part, **options):
        model = Mixed()
        optimizer = wrap(SGD(model.parameters(), 0.1, momentum=0.9), model, **options)
        for batch in batches(4):
            optimizer.zero_grad()
            model(part(batch)[0]).square().mean().backward()
            optimizer.step()
        return parameters(model)

    for options in ({}, {"groups": 2}):
        as_one_process(run, tolerance=1e-5, **options)
    hvd.broadcast_parameters(Mixed().state_dict(), 0)


@check
def groups_may_mix_devices():
    tensors = [torch.full((3,), RANK + 1.0, dtype=dtype) for dtype in (torch.float64, torch.float32, torch.float64)]
    total = SIZE * (SIZE + 1) / 2
    for name in (None, "named"):
        assert all(
            torch.equal(each, torch.full_like(each, total)) for each in hvd.grouped_allreduce(tensors, False, name)
        )
    handle = hvd.grouped_allreduce_async(tensors, op=hvd.Sum)
    assert [result.dtype for result in hvd.synchronize(handle)] == [tensor.dtype for tensor in tensors]
    assert all(map(torch.equal, handle.wait(), [torch.full_like(each, total) for each in tensors]))
    assert handle.poll()


@check
def ranks_that_differ_in_the_device_are_told():
    kind = cuda.kind
    try:
        cuda.kind = lambda tensor: "cuda" if RANK else "cpu"
        with raises(MismatchError, "device cpu", "device cuda"):
            hvd.allreduce(torch.ones(3), name="elsewhere")
        layer = torch.nn.Linear(2, 2)
        optimizer = hvd.DistributedOptimizer(SGD(layer.parameters(), 0.1))
        with raises(MismatchError, "float32 on cuda on rank"):
            layer(torch.ones(1, 2)).sum().backward()
        del optimizer
    finally:
        cuda.kind = kind


def driver():
    return world.engine().gpu().driver


@check
def gradients_of_other_streams_are_waited_for():
    """A hook before ours lets each gradient be produced late, on a stream of its own."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)])
    sides = [driver().new_stream() for _ in range(2)]
    alive = []

    def produce(number):
        def arrives(parameter):
            if step == 0:  # sent at the end of the pass, when torch has joined the streams of all gradients
                return
            late, parameter.grad[...] = parameter.grad.clone(), -1e9
            side = sides[number % 2]
            with driver().use:
                driver().copy(parameter.grad.data_ptr(), late.data_ptr(), late.nbytes, side.ptr)
            alive.append((late, parameter.grad))  # torch would give the memory back to the stream, and nobody else
            playing.use(side.ptr).__enter__()

        return arrives

    for number, parameter in enumerate(model.parameters()):
        parameter.register_post_accumulate_grad_hook(produce(number))
    optimizer = hvd.DistributedOptimizer(SGD(model.parameters(), 0.1), groups=2, gradient_predivide_factor=2.0)
    plain = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)])
    plain.load_state_dict(model.state_dict())
    for step in range(4):
        features = torch.randn(4 * SIZE, 64, generator=torch.Generator().manual_seed(step))
        for each, part in ((model, slice(RANK, None, SIZE)), (plain, slice(None))):
            each.zero_grad()
            each(features[part]).square().mean().backward()
        with playing.use(0):  # the host waits, and then may look
            driver().wait(0, driver().record(playing.current_stream()))
        for side in sides:
            driver().synchronize(driver().record(side.ptr))
        playing.use(0).__enter__()
        assert close(gradients(model), gradients(plain), 1e-5)
    assert not simulator.violations()
    del optimizer


@check
def a_step_neither_waits_nor_allocates_and_the_buckets_stay():
    layers = [torch.nn.Linear(8, 8) for _ in range(3)]
    model = torch.nn.Sequential(*layers)
    stream, alive, seen = driver().new_stream(), [], []
    for parameter in model.parameters():  # before ours; see `alive` above
        parameter.register_post_accumulate_grad_hook(lambda parameter: alive.append(parameter.grad))
    optimizer = hvd.DistributedOptimizer(SGD(model.parameters(), 0.1), groups=2)
    with playing.use(stream.ptr):  # the fusion memory, which a step first needs when both groups are ready at once
        alive.append(ones := [torch.ones(8), torch.ones(8)])
        alive.append(hvd.grouped_allreduce(ones))
    for step in range(5):
        before = len(simulator.log())
        with playing.use(stream.ptr):
            optimizer.zero_grad()
            model(torch.ones(2, 8)).sum().backward()
        calls = {call.name for call in simulator.log()[before:]}
        if step > 1:
            assert "RawKernel" in calls
            assert not calls & {"eventSynchronize", "streamSynchronize", "alloc", "alloc_pinned_memory"}, calls
        driver().synchronize(driver().record(stream.ptr))
        seen.append([parameter.grad.data_ptr() for parameter in model.parameters()])
        assert same_on_all_ranks(gradients(model))
    assert seen[1:] == seen[:-1]
    assert communication_memory()["gradient buckets"] >= 4 * 3 * 72
    del optimizer


@check
def a_captured_reduction_can_be_replayed():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    for parameter in model.parameters():
        torch.nn.init.ones_(parameter)
        parameter.register_post_accumulate_grad_hook(lambda parameter: produced.append(parameter.grad))
    optimizer = hvd.DistributedOptimizer(SGD(model.parameters(), 0.0), model.named_parameters())
    stream, produced = driver().new_stream(), []

    def backward(skips=False):
        optimizer.zero_grad()
        model[skips:](torch.full((1, 4), RANK + 1.0)).sum().backward()

    other = torch.nn.Linear(4, 4)
    fresh = hvd.DistributedOptimizer(SGD(other.parameters(), 0.1))
    with playing.use(stream.ptr):
        for _ in range(3):
            backward()
        driver().synchronize(driver().record(stream.ptr))
        expected = gradients(model)
        produced.clear()
        simulator.begin_capture(stream)
        backward()
        with raises(ValueError, "have not compared these parameters yet", "before the capture"):
            other(torch.ones(4)).sum().backward()
        graph = simulator.end_capture(stream)
    results = [parameter.grad for parameter in model.parameters()]
    for result in results:
        result.fill_(-1.0)
    for gradient in produced:
        gradient.mul_(2)
    hvd.barrier()
    optimizer.step()
    graph.launch()
    driver().synchronize(driver().record(stream.ptr))
    before = len(simulator.log())
    optimizer.step()  # behind a replay, which has reduced the gradients
    assert not {"RawKernel", "eventRecord"} & {call.name for call in simulator.log()[before:]}
    assert close(results, [2 * gradient for gradient in expected])
    assert same_on_all_ranks(results)
    with playing.use(stream.ptr):
        simulator.begin_capture(stream)
        with raises(ValueError, "no gradient on this rank", "requires_grad_(False)"):
            backward(skips=True)
        simulator.end_capture(stream)
        backward()  # not captured
    driver().synchronize(driver().record(stream.ptr))
    assert close(gradients(model), expected)
    fresh.zero_grad()


@check
def captured_gradients_are_quantised_unless_what_they_lose_is_to_be_made_up_for():
    stream, kept = driver().new_stream(), []
    for name, is_quantised in (("int8", True), ("int4", False)):
        weights = torch.nn.Parameter(torch.zeros(80, 100))
        weights.register_post_accumulate_grad_hook(lambda parameter: kept.append(parameter.grad))  # for the graph
        ramp = torch.arange(8000.0).view(80, 100)
        optimizer = hvd.DistributedOptimizer(
            SGD([weights], 0.0), [("weights", weights)], compression=getattr(hvd.Compression, name)
        )

        def backward():
            optimizer.zero_grad()  # noqa: B023
            (weights * ramp * (RANK + 1.0)).sum().backward()  # noqa: B023

        with playing.use(stream.ptr):
            for _ in range(3):
                backward()
            driver().synchronize(driver().record(stream.ptr))
            simulator.begin_capture(stream)
            before = len(simulator.log())
            backward()
            assert any(call.name == "send" for call in simulator.log()[before:]) is is_quantised
            graph = simulator.end_capture(stream)
        weights.grad.fill_(-1.0)
        graph.launch()
        driver().synchronize(driver().record(stream.ptr))
        error = float((weights.grad - ramp * (SIZE + 1) / 2).abs().max())
        assert (1e-3 < error < 100) if is_quantised else error < 1e-3, error
        assert same_on_all_ranks([weights.grad])


run_checks()
