"""Tuned training gives the bits of training that is not tuned, and all ranks choose alike; on a clock that is made up.

Started with DISTRUN_AUTOTUNE=1, and with the log file's name.
"""

import csv
import os
import sys
import time

import torch
from checking import check, run_checks, same_on_all_ranks

import distrun
import distrun.torch as hvd
from distrun.torch.gradients import tuning

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
LOG = sys.argv[1]
STEPS = 60
DEFAULT = (25 << 20, 1 << 20)
FIRST = {"bucket_bytes": 25 << 20, "first_bucket_bytes": 25 << 20}


class Clock:
    """The time as the tuner sees it: steps take what the rank and the setting make of them."""

    now = 0.0

    def perf_counter(self):
        return self.now


clock = tuning.time = Clock()


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(*[torch.nn.Linear(400, 400) for _ in range(5)])  # 3.2 MB of gradients


def wrap(model):
    return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.001), model.named_parameters())


def made():
    model = network()
    return model, wrap(model)


def step(model, optimizer, number, seconds=lambda setting: 1.0):
    data = torch.Generator().manual_seed(1000 * number + RANK)
    optimizer.zero_grad()
    model(torch.randn(4, 400, generator=data)).square().mean().backward()
    clock.now += seconds(setting_of(optimizer)) if RANK == SIZE - 1 else 0.01  # the slowest rank is the last
    optimizer.step()


def setting_of(optimizer):
    settings = optimizer._reducer._settings
    return settings.threshold, settings.first


def fast_first(setting):
    return 0.7 if setting[1] == 25 << 20 else 1.0


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def tuned(seconds, steps=STEPS):
    """Train with tuning; the model, its optimizer and the settings that its steps were made with."""
    model, optimizer = made()
    seen = []
    for number in range(steps):
        step(model, optimizer, number, seconds)
        seen.append(setting_of(optimizer))
    assert len({str(each) for each in distrun.allgather_object(seen)}) == 1
    return model, optimizer, seen


def untuned():
    os.environ["DISTRUN_AUTOTUNE"] = "0"
    model, optimizer = made()
    os.environ["DISTRUN_AUTOTUNE"] = "1"
    for number in range(STEPS):
        step(model, optimizer, number)
    assert optimizer._reducer.tuner is None
    return weights(model)


def told():
    """Return what was chosen last, the same on all ranks."""
    lasts = distrun.allgather_object(str(distrun.autotuned()[-1]))
    assert len(set(lasts)) == 1, lasts
    return distrun.autotuned()[-1]


@check
def the_faster_buckets_are_chosen_on_all_ranks_and_the_weights_are_those_of_untuned_training():
    model, optimizer, seen = tuned(fast_first)
    assert seen[-1] == (25 << 20, 25 << 20)
    assert set(seen[:5]) == {DEFAULT}
    assert len(set(seen)) > 2  # others were tried
    assert len([*optimizer._reducer._buckets]) == 1
    assert told().setting == FIRST
    assert told().steps <= 50
    assert abs(told().seconds - 0.7) < 1e-6
    assert torch.equal(weights(model), untuned())
    assert same_on_all_ranks([weights(model)])


@check
def the_default_stays_where_nothing_is_faster():
    model, _, seen = tuned(lambda setting: 1.0)
    assert seen[-1] == DEFAULT
    assert told().is_default
    assert torch.equal(weights(model), untuned())


@check
def the_log_says_what_was_tried():
    if RANK == 0:
        with open(LOG, newline="") as file:
            rows = list(csv.DictReader(file))
        first = rows[: 1 + next(n for n, row in enumerate(rows) if row["decision"].startswith("end:"))]
        assert [int(row["step"]) for row in first[:-1]] == list(range(1, told_steps(first) + 1))
        assert [row["decision"] for row in first[:5]] == ["warm-up"] * 5
        assert {float(row["seconds"]) for row in first[5:-1]} == {1.0, 0.7}
        assert "first_bucket_bytes 25 MiB instead of 1 MiB: 700 ms per step instead of 1000" in first[-1]["decision"]


def told_steps(rows):
    return int(rows[-1]["step"])


@check
def nothing_is_exchanged_after_the_tuning():
    model, optimizer, _ = tuned(fast_first)
    optimizer._reducer.tuner._slowest = None  # would raise
    for number in range(3):
        step(model, optimizer, number)


@check
def values_that_the_user_gives_are_kept():
    os.environ["DISTRUN_FIRST_BUCKET_BYTES"] = str(1 << 20)
    try:
        _, _, seen = tuned(fast_first)
    finally:
        del os.environ["DISTRUN_FIRST_BUCKET_BYTES"]
    assert {first for _, first in seen} == {1 << 20}
    assert len({size for size, _ in seen}) > 1


@check
def two_optimizers_are_tuned_one_after_the_other():
    models, optimizers = zip(made(), made(), strict=True)
    before = len(distrun.autotuned())
    for number in range(120):
        for place, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            step(model, optimizer, number, fast_first if place else lambda setting: 1.0)
            assert len({setting_of(each) for each in optimizers} - {DEFAULT}) <= 1  # only one is away from it
    assert [each.is_default for each in distrun.autotuned()[before:]] == [True, False]
    assert [setting_of(optimizer) for optimizer in optimizers] == [DEFAULT, (25 << 20, 25 << 20)]


@check
def parameters_that_come_make_it_begin_anew():
    model = network()
    for parameter in model[0].parameters():
        parameter.requires_grad = False
    optimizer = wrap(model)
    for number in range(20):
        step(model, optimizer, number, fast_first)
    for parameter in model[0].parameters():
        parameter.requires_grad = True
    for number in range(STEPS):
        step(model, optimizer, number, fast_first)
        assert number > 4 or setting_of(optimizer) == DEFAULT
    assert setting_of(optimizer) == (25 << 20, 25 << 20)


@check
def a_model_with_one_bucket_has_nothing_to_choose_from():
    model = torch.nn.Linear(400, 400)
    optimizer = wrap(model)
    step(model, optimizer, 0)
    assert told().steps == 0
    assert optimizer._reducer.tuner._is_over


@check
def the_wire_dtype_is_chosen_only_between_hosts_and_where_it_is_allowed():
    def wire():
        return optimizer._reducer._settings.wire

    has_hosts = distrun.local_size() < SIZE
    for allowed in ("", "bfloat16"):
        os.environ["DISTRUN_AUTOTUNE_WIRE_DTYPES"] = allowed
        model, optimizer = made()
        for number in range(STEPS):
            step(model, optimizer, number, lambda setting: 0.7 if wire() else 1.0)
        assert wire() == (allowed if has_hosts else "")
        assert told().setting.get("wire_dtype", "") == wire()
        assert same_on_all_ranks([weights(model)])
    del os.environ["DISTRUN_AUTOTUNE_WIRE_DTYPES"]


@check
def a_rank_that_joins_ends_it_with_the_default():  # the last check: nothing is tuned after it
    if SIZE == 1:
        return
    model, optimizer = made()
    for number in range(9 if RANK == 1 else 23):
        step(model, optimizer, number, fast_first)
    hvd.join()
    for number in range(5):
        step(model, optimizer, number, fast_first)
        assert setting_of(optimizer) == DEFAULT
    assert told().why == "a rank has no more data and has called join()"


run_checks()
tuning.time = time  # the ranks stay up, for other programs
