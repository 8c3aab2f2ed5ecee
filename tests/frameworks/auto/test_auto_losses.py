"""Losses taken apart, and how the losses of parts make up the loss of their batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - torch may be absent
from torch.nn import functional  # noqa: E402

from distrun.auto.torch import graph, losses  # noqa: E402
from distrun.auto.torch.agreement import CombiningRule, RefusedError, lasting, rules  # noqa: E402

pytestmark = pytest.mark.gate
SIZES = (5, 3)
NET = nn.Linear(4, 3)


def facts_of(loss, has_other_parts=False):
    return replace(losses._facts(loss, graph.decompose(loss.grad_fn)), has_other_parts=has_other_parts)


def rules_of(loss_of, is_padded=False, has_other_parts=False):
    ranks = []
    for size in SIZES:
        torch.manual_seed(size)
        ranks.append(facts_of(loss_of(NET(torch.randn(size, 4)), torch.randint(0, 3, (size,))), has_other_parts))
    return rules(ranks, SIZES, is_padded)


class Hidden(torch.autograd.Function):
    """A sum over data that the graph does not show."""

    @staticmethod
    def forward(context, x, weight):
        return (x @ weight.T).sum()

    @staticmethod
    def backward(context, gradient):
        return None, None


ONCE, SUM, MEAN, COUNTED = CombiningRule.ONCE, CombiningRule.SUM, CombiningRule.MEAN, CombiningRule.COUNTED
BY_NAME = {
    "mean": (lambda o, y: functional.cross_entropy(o, y), [MEAN]),
    "sum": (lambda o, y: functional.cross_entropy(o, y, reduction="sum"), [SUM]),
    "sum by a constant": (lambda o, y: (o**2).sum() / 32, [SUM]),
    "sum by the batch": (lambda o, y: (o**2).sum() / len(y), [MEAN]),
    "sum times the reciprocal": (lambda o, y: (o**2).sum() * (1 / len(y)), [MEAN]),
    "mean times the batch": (lambda o, y: (o**2).mean() * len(y), [SUM]),
    "smooth": (lambda o, y: functional.cross_entropy(o, y, label_smoothing=0.1), [MEAN, MEAN]),
    "weighted": (lambda o, y: functional.cross_entropy(o, y, torch.tensor([1.0, 2.0, 3.0])), [COUNTED]),
    "masked": (lambda o, y: o[y > 0].mean(), [COUNTED]),
    "huber": (lambda o, y: functional.huber_loss(o, torch.zeros_like(o)), [MEAN]),
    "kl": (lambda o, y: functional.kl_div(o.log_softmax(1), torch.ones_like(o), reduction="batchmean"), [MEAN]),
    "of a fixed size": (lambda o, y: NET(torch.ones(7, 4)).sum(), [ONCE]),
    "penalty": (lambda o, y: -o.mean() + 0.1 * NET.weight.norm(), [ONCE, MEAN]),
    "stacked": (lambda o, y: torch.stack([o.mean(), 2 * o.sum()]).sum(), [SUM, MEAN]),
    "instances": (lambda o, y: functional.instance_norm(o.view(-1, 1, 3)).pow(3).mean(), [MEAN]),
    "times zero": (lambda o, y: o.mean() + 0.0 * o.pow(2).sum(), [SUM, MEAN]),
    "by a tensor": (lambda o, y: o.mean() / torch.tensor(0.5), [MEAN]),
    "by what counts": (lambda o, y: o.sum() / torch.linspace(1, 2, len(y)).pow(2).sum(), [COUNTED]),
    "by nearly the same number": (lambda o, y: o.sum() / (100_000 + (len(y) > 4)), [COUNTED]),
    "in order within samples": (lambda o, y: o.topk(2, 1)[0].mean() + o.softmax(-1).cumsum(1).sum(), [SUM, MEAN]),
    "times a parameter": (lambda o, y: o.mean() * NET.bias.sum().exp(), [ONCE, MEAN]),
}


@pytest.mark.parametrize("name", BY_NAME)
def test_the_rules_of_a_loss(name):
    loss_of, expected = BY_NAME[name]
    assert sorted(rules_of(loss_of), key=str) == sorted(expected, key=str)


@pytest.mark.parametrize(
    ("loss_of", "why"),
    [
        (lambda o, y: o.pow(2).mean().sqrt(), "is no sum or mean"),
        (lambda o, y: o.max(), "is no sum or mean"),
        (lambda o, y: (o.T @ o).sum(), "combined before the loss"),
        (lambda o, y: (o - o.mean(0)).pow(2).sum(), "combined before the loss"),
        (lambda o, y: (o @ o.T).logsumexp(1).mean(), "compared with each other"),
        (lambda o, y: o.mean() * o.sum(), "multiplies numbers"),
        (lambda o, y: functional.batch_norm(o, None, None, training=True).sum(), "statistics of the batch"),
        (lambda o, y: o.mean() if len(y) > 4 else o.sum(), "different ways"),
        (lambda o, y: o.amax(1).topk(len(y) // 2).values.mean(), "are ordered"),
        (lambda o, y: o.sort(0)[0].pow(2).mean(), "are ordered"),
        (lambda o, y: (o.softmax(0) * o).sum(), "are ordered"),
        (lambda o, y: (o.roll(1, 0) * o).mean(), "are ordered"),
        (lambda o, y: (o.flatten().roll(3).view(-1, 3) * o).mean(), "are ordered"),
        (lambda o, y: Hidden.apply(torch.ones(len(y), 4), NET.weight), "within one function"),
    ],
)
def test_what_is_no_combination_of_the_parts_is_refused(loss_of, why):
    with pytest.raises(RefusedError, match=why):
        rules_of(loss_of)


@pytest.mark.parametrize("why", ["is_padded", "has_other_parts"])
def test_a_mean_is_counted_over_padded_samples_and_where_the_script_works_on_batches_of_two_loaders(why):
    assert rules_of(lambda o, y: o.mean(), **{why: True}) == (COUNTED,)


def test_what_compares_elements_along_a_padded_dimension_is_not_refused():
    longest = {5: 7, 3: 6}
    assert rules_of(lambda o, y: o[:, None].expand(-1, longest[len(y)], -1).softmax(1).sum(), is_padded=True) == (SUM,)


def test_losses_that_differ_only_in_their_reductions_are_of_different_kinds():
    scores = NET(torch.ones(2, 4))
    one, other = (functional.cross_entropy(scores, torch.zeros(2).long(), reduction=each) for each in ("sum", "mean"))
    assert graph.decompose(one.grad_fn).signature != graph.decompose(other.grad_fn).signature


def test_numbers_are_still_known_when_the_graph_has_been_freed():
    loss = NET(torch.ones(2, 4)).sum() / torch.tensor(8.0)
    before = graph.decompose(loss.grad_fn).reductions[0].divisor
    loss.backward()
    assert graph.decompose(loss.grad_fn).reductions[0].divisor == before == 8


@pytest.mark.parametrize("name", ["mean", "sum", "sum by the batch", "smooth", "penalty", "stacked"])
def test_the_weighted_gradients_of_the_parts_have_the_average_of_the_batch(name):
    loss_of, _ = BY_NAME[name]
    x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
    whole = torch.autograd.grad(loss_of(NET(x), y), NET.weight)[0]
    of_parts = [loss_of(NET(a), b) for a, b in zip(x.split(SIZES), y.split(SIZES), strict=True)]
    found = rules([facts_of(loss) for loss in of_parts], SIZES)
    total = torch.zeros_like(whole)
    for rank, loss in enumerate(of_parts):
        for reduction, rule in zip(graph.decompose(loss.grad_fn).reductions, found, strict=True):
            factor = rule.factor(SIZES, rank)
            reduction.node.register_prehook(lambda grads, factor=factor: tuple(each * factor for each in grads))
        total += torch.autograd.grad(loss, NET.weight)[0] / len(SIZES)
    assert torch.allclose(total, whole, atol=1e-5)


def unrolled(o, y):
    """A mean over the samples after as many steps as there are samples."""
    for _ in y:
        o = o.tanh()
    return functional.cross_entropy(o, y) + NET.weight.pow(2).sum()


def test_graphs_that_differ_are_refused_unless_a_trial_shows_that_the_loss_is_right():
    of_parts = [unrolled(NET(torch.randn(size, 4)), torch.zeros(size, dtype=torch.long)) for size in SIZES]
    ranks = [facts_of(loss) for loss in of_parts]
    with pytest.raises(RefusedError, match="graphs of the loss differ"):
        rules(ranks, SIZES)
    assert rules(ranks, SIZES, whole=(1.0, 8.0), may_differ=True) == (ONCE, MEAN)


def test_as_many_samples_selected_on_each_rank_need_a_trial():
    ranks = [facts_of(NET(torch.randn(size, 4))[torch.arange(size) < 2].mean()) for size in SIZES]
    with pytest.raises(RefusedError, match="combined before the loss"):
        rules(ranks, SIZES)
    assert rules(ranks, SIZES, whole=(12.0,), may_select=True) == (COUNTED,)


def test_what_is_computed_of_a_selection_may_have_its_extent_and_a_mean_over_it_may_not():
    ranks = [facts_of(NET(torch.randn(size, 4))[:2].tanh().sum()) for size in SIZES]
    with pytest.raises(RefusedError, match="combined before the loss"):
        rules(ranks, SIZES)
    assert rules(ranks, SIZES, whole=(1.0,), may_select=True) == (SUM,)
    ranks = [facts_of(NET(torch.randn(size, 4))[:2].mean(0).pow(2).sum()) for size in SIZES]
    with pytest.raises(RefusedError, match="combined before the loss"):
        rules(ranks, SIZES, whole=(1.0,), may_select=True)


@pytest.mark.parametrize(("whole", "expected"), [(None, SUM), ((4.0,), SUM), ((8.0,), COUNTED)], ids=str)
def test_the_divisor_of_the_batch_tells_a_count_that_is_equal_on_all_ranks_from_a_constant(whole, expected):
    ranks = [facts_of(NET(torch.randn(size, 4)).sum() / torch.tensor(4.0)) for size in SIZES]
    assert rules(ranks, SIZES, whole=whole) == (expected,)


def test_rules_last_where_another_batch_shows_less_by_chance():
    known, new = (COUNTED, COUNTED, MEAN, ONCE), (SUM, ONCE, MEAN, ONCE)
    assert lasting(known, new, is_tried=False) == known
    assert lasting((SUM,), (ONCE,), is_tried=True) == (SUM,)


@pytest.mark.parametrize(("old", "new"), [(ONCE, COUNTED), (ONCE, SUM), (SUM, ONCE)], ids=str)
def test_a_term_that_depends_on_the_samples_in_some_batches_is_refused(old, new):
    with pytest.raises(RefusedError, match="seem so"):
        lasting((old,), (new,), is_tried=False)
