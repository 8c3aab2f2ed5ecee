"""Gradients that travel quantised between hosts: the same bits on all ranks, within bounds, and small ones exact."""

from functools import partial

import numpy as np
import torch
from checking import check, run_checks, same_on_all_ranks
from digits import accuracy_with
from expecting import raises

import distrun.torch as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
IS_QUANTISED = hvd.local_size() < SIZE
ROUNDING = {"int8": 1 / 254, "int4": 5 / 18}  # of the largest of 256


def exact_sum(tensor):
    return torch.from_numpy(np.sum(hvd.allgather_object(tensor.numpy()), 0, dtype=np.float64))


def bound_of(tensor, rounding):
    """Return what may be lost if all blocks had the largest element: on the way to the owner of each part, on the way
    back of a sum that is larger by that, and by float32's own rounding."""
    sent = sum(hvd.allgather_object(float(tensor.abs().max())))
    return 2.4 * sent * rounding + 1e-5 * sent


@check
def a_large_tensor_is_within_its_bounds_and_a_small_one_exact():
    for name, rounding in ROUNDING.items():
        compression = getattr(hvd.Compression, name)
        generator = torch.Generator().manual_seed(RANK)
        for count in (4095, 4096, 100_000, 1_000_001):
            tensor = torch.randn(count, generator=generator, device="cpu").to(torch.get_default_device())
            result = hvd.allreduce(tensor, op=hvd.Sum, compression=compression, name=f"{name}.{count}")
            error = float((result - exact_sum(tensor)).abs().max())
            assert error <= bound_of(tensor, rounding), (name, count, error)
            assert (error > 1e-4) == (IS_QUANTISED and count >= 4096), (name, count, error)
            assert same_on_all_ranks([result])
        whole = torch.arange(10_000) + RANK
        assert torch.equal(hvd.allreduce(whole, op=hvd.Sum, compression=compression), exact_sum(whole).long())
        largest = hvd.allreduce(torch.full((5000,), RANK + 0.3), op=hvd.Max, compression=compression)
        assert torch.equal(largest, torch.full((5000,), SIZE - 1 + 0.3))


@check
def tensors_of_a_group_are_quantised_by_their_own_size():
    small, large = torch.full((7,), 1e-6), torch.full((5000,), 1e6)
    for name in ROUNDING:
        results = hvd.grouped_allreduce(
            [small, large, small], op=hvd.Average, compression=getattr(hvd.Compression, name), name=f"group.{name}"
        )
        for result, given in zip(results, (small, large, small), strict=True):
            assert float((result / given - 1).abs().max()) < 1e-6
        handles = [
            hvd.allreduce_async(tensor, op=hvd.Average, name=f"{name}.fused.{place}")
            for place, tensor in enumerate([small, large, small] * 3)
        ]
        for handle, given in zip(handles, [small, large, small] * 3, strict=True):
            assert float((hvd.synchronize(handle) / given - 1).abs().max()) < 1e-6


def model_of():
    torch.manual_seed(4)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 128),
        torch.nn.LayerNorm(128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 64),
        torch.nn.Linear(64, 3),
    )


def gradients_with(compression, unused=False, odd=None):
    """The reduced gradients of a step in which rank 0 may have no use for the last layer."""
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression)
    torch.manual_seed(RANK)
    for _ in range(3):  # buckets are planned again after the first
        optimizer.zero_grad()
        out = torch.randn(16, 64)
        for place, layer in enumerate(model):
            out = out if unused and RANK == 0 and place == 4 else layer(out)
        loss = out.square().mean()
        (loss if odd is None or RANK else loss * odd).backward()
        optimizer.synchronize()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


@check
def only_gradients_of_large_parameters_are_quantised():
    for unused in (False, True):
        plain = gradients_with(hvd.Compression.none, unused)
        for name, rounding in ROUNDING.items():
            found = gradients_with(getattr(hvd.Compression, name), unused)
            assert found.keys() == plain.keys()
            assert same_on_all_ranks(list(found.values()))
            for key, gradient in found.items():
                error = float((gradient - plain[key]).abs().max())
                limit = float(plain[key].abs().max())
                if gradient.numel() < 4096:
                    assert error <= 1e-6 * limit, (key, error)
                else:
                    assert (error > 0) == IS_QUANTISED, (key, error)
                    assert error < 8 * SIZE * limit * rounding, (key, error, limit)


@check
def powersgd_approximates_matrices_and_leaves_the_rest_as_it_is():
    compression = hvd.Compression.powersgd(2)
    for unused in (False, True):
        plain, found = gradients_with(hvd.Compression.none, unused), gradients_with(compression, unused)
        assert found.keys() == plain.keys()
        assert same_on_all_ranks(list(found.values()))
        for key, gradient in found.items():
            assert gradient.shape == plain[key].shape
            if gradient.numel() < 4096:
                assert torch.allclose(gradient, plain[key], rtol=1e-5, atol=1e-8), key
            else:
                assert not torch.allclose(gradient, plain[key]), key
                assert torch.linalg.matrix_rank(gradient) <= 2
    torch.manual_seed(RANK)
    gradient, weights = torch.randn(80, 100), torch.nn.Parameter(torch.zeros(80, 100))
    exact = exact_sum(gradient) / SIZE
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weights], 1.0), [("w", weights)], compression=compression)
    lost = []
    for count in range(1, 151):
        optimizer.zero_grad()
        (weights * gradient).sum().backward()
        optimizer.step()
        lost.append(float((weights.detach() / count + exact).norm() / exact.norm()))
    assert lost[-1] < 0.25 < 0.8 < lost[0], lost
    with raises(ValueError, "powersgd", "use Average or Sum"):
        hvd.DistributedOptimizer(torch.optim.SGD([weights], 1.0), compression=compression, op=hvd.Max)
    with raises(ValueError, "PowerSGDCompressor(rank=2)", "for the gradients of an optimizer"):
        hvd.allreduce(gradient, compression=compression)
    with raises(ValueError, "powersgd('4')", "whole number greater than 0"):
        hvd.Compression.powersgd("4")
    with raises(ValueError, "powersgd(True)", "whole number greater than 0"):
        hvd.Compression.powersgd(True)


@check
def a_gradient_that_is_not_finite_is_seen_on_all_ranks():
    for name in ROUNDING:
        found = gradients_with(getattr(hvd.Compression, name), odd=float("inf"))
        assert not torch.isfinite(found["0.weight"]).all()
        assert not torch.isfinite(found["3.weight"]).all()


@check
def ranks_without_data_left_take_part():
    for name in ROUNDING:
        if RANK == 0:
            tensor = torch.linspace(-1, 1, 9000)
            result = hvd.allreduce(tensor, op=hvd.Sum, compression=getattr(hvd.Compression, name), name=f"last.{name}")
            assert float((result - tensor).abs().max()) <= 2.4 * ROUNDING[name] + 1e-5
        assert hvd.join() == 0 or SIZE == 1


@check
def models_learn_digits_in_all_forms():
    found = {}
    for name in ("none", "bf16", "fp16", *ROUNDING, "powersgd"):
        compression = hvd.Compression.powersgd(2) if name == "powersgd" else getattr(hvd.Compression, name)
        found[name] = accuracy_with(partial(hvd.DistributedOptimizer, compression=compression))
    assert all(accuracy > 0.87 and accuracy > found["none"] - 0.04 for accuracy in found.values()), found


run_checks()
