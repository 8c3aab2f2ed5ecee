"""Losses of compressed gradients are made up for, whatever comes between: `residuals.py FOLDER`.

With gradients that are known, all steps together have moved the weights by the exact sum of the gradients, apart from
what is still owed. So what is owed must be that difference at any time.
"""

import sys
from pathlib import Path

import torch
from checking import check, run_checks, same_on_all_ranks

import distrun.torch as hvd
from distrun.checkpoint import CheckpointManager
from distrun.errors import CollectiveError

FOLDER = Path(sys.argv[1])
hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
SHAPES = (80, 100), (60, 4, 40), (100,)


class OddError(Exception):
    """The error of a backward pass."""


class Failing(torch.autograd.Function):
    """The identity, whose backward pass fails on rank 0."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        if RANK == 0:
            raise OddError
        return gradient


class Descent:
    """Weights, the steps they have made, and those that they should have made."""

    def __init__(self, compression, op, predivide):
        torch.manual_seed(RANK)
        self.gradients = [torch.randn(shape) for shape in SHAPES]
        self.scale = SIZE if op == hvd.Sum else 1
        self.exact = [hvd.allreduce(gradient, op=op) for gradient in self.gradients]
        self.weights = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
        self.made = 0
        self.begin(compression, op, predivide)

    def begin(self, compression, op, predivide):
        self.optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(self.weights[:2], 1.0), compression=compression, op=op, gradient_predivide_factor=predivide
        )
        self.optimizer.add_param_group({"params": self.weights[2:]})

    def loss(self, change=lambda tensor: tensor):
        """The loss whose gradients these are; that of the first weight comes last, as it is used first."""
        weights = [change(self.weights[0]), *self.weights[1:]]
        return sum((weight * gradient).sum() for weight, gradient in zip(weights, self.gradients, strict=True))

    def step(self, passes=1):
        self.optimizer.zero_grad()
        for _ in range(passes):
            self.loss().backward()
        self.optimizer.step()
        self.made += passes

    def check(self):
        with self.optimizer.complete_state():
            losses = self.optimizer.state_dict().get("losses", {})
        assert same_on_all_ranks([weight.detach() for weight in self.weights])
        for number, (weight, exact) in enumerate(zip(self.weights, self.exact, strict=True)):
            missing = weight.detach() + self.made * exact
            owed = losses[number]["lost"] * self.scale if number in losses else torch.zeros_like(weight)
            limit = 0.02 * float(owed.abs().max()) + 1e-5 * self.made * self.scale
            assert float((missing - owed).abs().max()) <= limit, (number, missing, owed)
        return losses


def forms():
    yield hvd.Compression.powersgd(2), hvd.Average, 1.0
    yield hvd.Compression.powersgd(2), hvd.Sum, 1.0
    if hvd.local_size() < SIZE:
        yield hvd.Compression.int4, hvd.Average, 1.0
        yield hvd.Compression.int4, hvd.Average, 4.0
        yield hvd.Compression.int4, hvd.Sum, 1.0


@check
def nothing_is_lost():
    for form in forms():
        descent = Descent(*form)
        for _ in range(4):
            descent.step()
            assert set(descent.check()) == {0, 1}  # the third is too small
        largest = max(float(loss["lost"].abs().max()) for loss in descent.check().values())
        assert largest > 0.01
        assert form[0] != hvd.Compression.int4 or largest < 10, (form, largest)  # it does not pile up


@check
def gradients_that_are_averaged_again_have_lost_what_they_lost_twice():
    for form in forms():
        if form[1] == hvd.Average:
            descent = Descent(*form)
            for _ in range(4):
                descent.step(passes=2)
                descent.check()


@check
def passes_that_are_dropped_or_fail_change_nothing():
    for form in forms():
        descent = Descent(*form)
        for _ in range(3):
            descent.step()
            descent.optimizer.zero_grad()
            descent.loss(lambda tensor: 3 * tensor).backward()
            descent.optimizer.zero_grad()
            descent.check()
            try:
                descent.loss(Failing.apply).backward()
                raise AssertionError("the pass has not failed")
            except (OddError, CollectiveError):
                pass
            descent.check()


@check
def a_pass_that_fails_when_a_bucket_is_on_its_way_is_dropped_on_all_ranks():
    for compression in (hvd.Compression.powersgd(2), hvd.Compression.int4):
        torch.manual_seed(0)
        early, late = (torch.nn.Parameter(torch.randn(80, 100)) for _ in range(2))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([early, late], 0.1), compression=compression, groups=[[early], [late]]
        )
        for step in range(5):
            optimizer.zero_grad()
            product = early * (RANK + 1)
            if step == 2:
                product = Failing.apply(product)
            loss = (product + late * (RANK + 1)).sum()  # of `late` the gradient comes first
            if step == 2:
                try:
                    loss.backward()
                    raise AssertionError("the pass has not failed")
                except (OddError, CollectiveError):
                    continue
            loss.backward()
            optimizer.step()
        assert all(same_on_all_ranks([each.detach()]) for each in (early, late))


@check
def new_buckets_make_up_for_what_the_old_ones_have_lost():
    for form in forms():
        descent = Descent(*form)
        for _ in range(3):
            descent.step()
        extra = torch.nn.Parameter(torch.zeros(70, 90))
        descent.optimizer.add_param_group({"params": [extra]})
        descent.check()
        descent.step()
        descent.check()


@check
def checkpoints_have_it_for_any_optimizer_that_loads_them():
    for number, form in enumerate(forms()):
        descent = Descent(*form)
        for _ in range(3):
            descent.step()
        assert "losses" not in descent.optimizer.state_dict()
        plain = torch.optim.SGD([{"params": descent.weights[:2]}, {"params": descent.weights[2:]}], 1.0)
        with descent.optimizer.complete_state():
            plain.load_state_dict(descent.optimizer.state_dict())
        with CheckpointManager(FOLDER / str(number)) as checkpoints:
            checkpoints.save(3, optimizer=descent.optimizer, weights=[each.detach() for each in descent.weights])
        descent.step()
        again = Descent(*form)
        found = CheckpointManager(FOLDER / str(number)).restore(optimizer=again.optimizer, weights=None)
        again.made = found.step
        with torch.no_grad():
            for weight, saved in zip(again.weights, found.weights, strict=True):
                weight.copy_(saved)
        again.check()
        for _ in range(3):
            again.step()
            again.check()
        again.begin(hvd.Compression.none, *form[1:])  # which makes up for it at once
        with descent.optimizer.complete_state():
            again.optimizer.load_state_dict(descent.optimizer.state_dict())


run_checks()
