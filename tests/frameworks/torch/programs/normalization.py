"""SyncBatchNorm on the ranks' batches equals torch's BatchNorm in one process on all of them."""

import copy
import pickle
import random

import torch
from checking import check, close, run_checks, same_on_all_ranks
from expecting import raises
from torch.utils._python_dispatch import TorchDispatchMode

import distrun.torch as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
PLAIN = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d, 5: torch.nn.BatchNorm3d}
LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}
TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}


class AsOnCuda(TorchDispatchMode):
    """Within this context the kernels ask for what those of CUDA do."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.native_batch_norm_backward.default:
            assert args[5] is not None, "save_mean should always be defined"
            assert args[6] is not None, "save_invstd should always be defined"
        return func(*args, **(kwargs or {}))


def cases(count):
    """Random inputs and layers, the same on all ranks."""
    choose = random.Random(11).choice
    for number in range(count):
        torch.manual_seed(number)
        dims, dtype, channels = choose((2, 3, 4, 5)), choose(list(TOLERANCES)), choose((1, 4, 7))
        rows = [choose((0, 1, 2, 5)) for _ in range(SIZE)]
        rows[choose(range(SIZE))] = 6
        whole = torch.randn(sum(rows), channels, *(3, 2, 3)[: dims - 2], dtype=torch.float64) * 2 + choose((0, 5))
        whole = whole.to(dtype)
        if dims in LAYOUTS and choose((True, False)):
            whole = whole.contiguous(memory_format=LAYOUTS[dims])
        options = {"eps": choose((1e-5, 1e-2)), "momentum": choose((None, 0.1, 0.7))}
        options |= {"affine": choose((True, True, False)), "track_running_stats": choose((True, True, False))}
        layer = PLAIN[dims](channels, **options).to(choose((dtype, torch.float32)) if dtype.itemsize == 2 else dtype)
        for parameter in layer.parameters():
            torch.nn.init.uniform_(parameter)
        yield whole, rows, layer


def outcome(layer, batches, gradients):
    """Return what a layer does with some batches: outputs, gradients, buffers, its output in evaluation mode."""
    results = []
    for batch, gradient in zip(batches, gradients, strict=True):
        leaf = batch.clone(memory_format=torch.preserve_format).requires_grad_()
        output = layer(leaf)
        output.backward(gradient)
        results += [output.detach(), leaf.grad]
    layer.eval()
    if layer.track_running_stats:
        results.append(layer(batches[0]).detach())
    return results, list(layer.buffers()), [parameter.grad for parameter in layer.parameters()]


@check
def all_ranks_together_do_what_one_process_does():
    for whole, rows, layer in cases(60):
        start = sum(rows[:RANK])
        mine = slice(start, start + rows[RANK])
        whole_gradient = torch.randn_like(whole)
        batches, gradients = [whole, whole * 2 - 1], [whole_gradient, whole_gradient.flip(0)]
        synced = hvd.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(layer))
        expected, buffers, sums = outcome(layer, batches, gradients)
        with AsOnCuda():
            own, own_buffers, own_sums = outcome(synced, [b[mine] for b in batches], [g[mine] for g in gradients])
        tolerance = TOLERANCES[whole.dtype]
        about = whole.dtype, tuple(whole.shape), rows, layer
        for left, right in zip(own, expected, strict=True):
            assert left.dtype is right.dtype, about
            assert close([left], [right[mine]], tolerance), about
            assert not left.numel() or left.stride() == right[mine].stride(), about
        assert close(own_buffers, buffers, tolerance), about
        assert same_on_all_ranks(own_buffers), about
        for part, total in zip(own_sums, sums, strict=True):
            assert close([hvd.allreduce(part, op=hvd.Sum)], [total], 4 * tolerance), about


@check
def a_mean_far_from_zero_spoils_the_variance_no_more_than_in_one_process():
    torch.manual_seed(0)
    whole = torch.randn(SIZE * 50, 2, dtype=torch.float32) + 1000
    layer = hvd.SyncBatchNorm(2, momentum=1.0)
    layer(whole[RANK * 50 :][:50])
    assert close([layer.running_var], [whole.double().var(0).float()], 1e-4)
    assert close([layer.running_mean], [whole.double().mean(0).float()], 1e-6)


@check
def evaluation_and_no_grad_are_as_in_one_process():
    layer, plain = hvd.SyncBatchNorm(3).double(), torch.nn.BatchNorm1d(3).double()
    whole = torch.arange(12.0 * SIZE, dtype=torch.float64).reshape(-1, 3).square()
    with torch.no_grad():
        output = layer(whole[RANK::SIZE])
        assert close([output], [plain(whole)[RANK::SIZE]])
        assert not output.requires_grad
    layer.eval(), plain.eval()
    if RANK == 0:  # nothing is communicated
        assert close([layer(whole)], [plain(whole)])
    stateless = hvd.SyncBatchNorm(3, track_running_stats=False).double().eval()
    if RANK == 0:
        assert torch.equal(stateless(whole), torch.nn.BatchNorm1d(3, track_running_stats=False).double()(whole))


@check
def inputs_that_need_no_gradient_need_no_operation_in_backward():
    layer = hvd.SyncBatchNorm(2)
    layer(torch.full((2, 2), float(RANK))).sum().backward()
    assert layer.bias.grad.tolist() == [2.0, 2.0]


@check
def models_are_converted_and_train_as_one_process_does():
    def make():
        torch.manual_seed(2)
        shared = torch.nn.BatchNorm2d(4)
        block = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), shared, torch.nn.Conv2d(4, 4, 1), shared)
        layers = [block, torch.nn.Flatten(), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.0), torch.nn.Linear(16, 1)]
        return torch.nn.Sequential(*layers).double()

    def train(model, rows, wrap=lambda optimizer: optimizer):
        optimizer = wrap(torch.optim.SGD(model.parameters(), 0.05))
        for step in range(4):
            torch.manual_seed(step)
            features = torch.randn(4 * SIZE, 3, 4, 4, dtype=torch.float64)[rows]
            optimizer.zero_grad()
            model(features).square().mean().backward()
            optimizer.step()
        return [*model.parameters(), *model.buffers()]

    model = make()
    model[2].eval()
    before = dict(model.state_dict(keep_vars=True))
    parameter = model[2].weight
    calls = []
    model[2].register_forward_hook(lambda *_: calls.append(1))
    converted = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
    assert converted is model
    assert model.state_dict().keys() == before.keys()
    assert model[2].weight is parameter
    assert model[0][1] is model[0][3]
    assert [type(layer).__name__ for layer in model] == ["Sequential", "Flatten", "SyncBatchNorm", "Dropout", "Linear"]
    assert (model[2].training, model[0][1].training) == (False, True)
    model.train()
    rows = slice(4 * RANK, 4 * RANK + 4)
    assert close(train(model, rows, hvd.DistributedOptimizer), train(make(), slice(None)))
    assert calls == [1] * 4
    again = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
    assert again[2] is model[2]
    twin = pickle.loads(pickle.dumps(copy.deepcopy(hvd.SyncBatchNorm(2))))
    assert twin(torch.full((1, 2), float(RANK))).shape == (1, 2)
    alone = hvd.SyncBatchNorm.convert_sync_batchnorm(torch.nn.SyncBatchNorm(3).half())
    assert isinstance(alone, hvd.SyncBatchNorm)
    assert alone.weight.dtype is torch.float16


@check
def what_cannot_be_normalised_is_refused_in_a_sentence():
    layer = hvd.SyncBatchNorm(3)
    with raises(ValueError, "2 to 5 dimensions", "(4,)"):
        layer(torch.ones(4))
    with raises(ValueError, "3 channels", "(2, 4)"):
        layer(torch.ones(2, 4))
    with raises(ValueError, "first forward pass"):
        hvd.SyncBatchNorm.convert_sync_batchnorm(torch.nn.LazyBatchNorm1d())


run_checks()
