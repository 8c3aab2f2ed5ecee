"""Parts of a trial of a step: batches are put together again, and ranks draw what one process draws."""

from __future__ import annotations

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from distrun.auto import comparing  # noqa: E402
from distrun.auto.refusing import Refusal  # noqa: E402
from distrun.auto.torch.parts import Part  # noqa: E402
from distrun.auto.torch.trial import drawing, samples  # noqa: E402
from distrun.auto.torch.trial.differences import EXACT, difference, gradient_of  # noqa: E402

pytestmark = pytest.mark.gate
SIZES = (3, 2, 2)


@pytest.mark.parametrize(
    "whole",
    [
        torch.arange(14.0).view(7, 2),
        (torch.arange(7), {"x": torch.ones(5, 7, 3), "names": list("abcdefg")}, "train"),
        [torch.zeros(7, dtype=torch.bool), 4],
    ],
    ids=["tensor", "nest", "list"],
)
def test_parts_make_up_the_batch(whole):
    def part(value, start, stop):
        if isinstance(value, torch.Tensor):
            dim = value.shape.index(7)
            return value.narrow(dim, start, stop - start)
        if isinstance(value, dict):
            return {key: part(each, start, stop) for key, each in value.items()}
        if isinstance(value, list) and len(value) == 7:
            return value[start:stop]
        return type(value)(part(each, start, stop) for each in value) if isinstance(value, (list, tuple)) else value

    merged = samples.merged([part(whole, 0, 3), part(whole, 3, 5), part(whole, 5, 7)], SIZES)
    assert repr(merged) == repr(whole)


@pytest.mark.parametrize(
    "parts",
    [
        [torch.zeros(3, 4), torch.zeros(2, 5), torch.zeros(2, 4)],
        [torch.zeros(9), torch.zeros(9), torch.zeros(9)],
        ["a", "b", "b"],
    ],
    ids=["padded", "of another size", "unequal text"],
)
def test_what_is_not_made_of_samples_is_not_put_together(parts):
    assert samples.merged(parts, SIZES) is None


@pytest.mark.parametrize(
    ("size", "tried"),
    [
        (2, [1, 2, 4, 8, 16, 36, 72, 144, 288, 576, 1152, 2304, 4304, 6304, 8304]),
        (64, [1, 2, 4, 8, 16, 656, 1312, 2624, 5248]),
    ],
)
def test_the_steps_that_are_tried_follow_from_the_count_of_batches_alone(size, tried):
    schedule = comparing.TrialSchedule()
    first = [batch for batch in range(1, 10_001) if schedule.advance(is_new=batch == 1, size=size)]
    again = [batch for batch in range(1, 10_001) if schedule.advance(is_new=batch == 1, size=size)]
    assert first == again == tried


def test_a_step_is_tried_sooner_where_a_loss_is_new():
    schedule = comparing.TrialSchedule()
    tried = []
    for batch in range(1, 100):
        if batch == 41:  # something was new in the 40th
            schedule.bring_forward()
        if schedule.advance(is_new=False, size=2):
            tried.append(batch)
    assert tried == [1, 2, 4, 8, 16, 36, 41, 82]


@pytest.mark.parametrize(
    ("counts", "reason"),
    [([3, 4, 5], r"the same weights after step 7: there are \[3, 4, 5\]"), ([3, 3, 3], "weights of the ranks differ")],
)
def test_ranks_whose_weights_differ_are_refused(monkeypatch, counts, reason):
    table = np.concatenate([[count, *range(place, place + count)] for place, count in enumerate(counts)])
    monkeypatch.setattr(comparing.distrun, "allgather", lambda *_, **__: table)
    with pytest.raises(Refusal) as refusal:
        comparing.compare(lambda: (list("abc"), [0, 1, 2]), 7)
    assert re.search(reason, refusal.value.reason)


def test_weights_are_compared_again_when_a_rank_has_collected_its_garbage(monkeypatch):
    tables = [np.array([2, 8, 9, 1, 8]), np.array([1, 8, 1, 8])]
    monkeypatch.setattr(comparing.distrun, "allgather", lambda *_, **__: tables.pop(0))
    comparing.compare(lambda: (["a"], [8]), 7)
    assert not tables


def draws(rows):
    """Draw in the ways of scripts, for a batch of `rows`."""
    x = torch.ones(rows, 4)
    return [
        torch.randn(rows, 2),
        torch.rand_like(x),
        torch.nn.functional.dropout(x, 0.5),
        torch.empty(5, rows).normal_(),
        torch.bernoulli(torch.full((rows, 3), 0.5)),
        torch.randint(0, 9, (rows,)),
        torch.multinomial(torch.ones(rows, 6), 2),
        torch.nn.functional.dropout(torch.ones(4 * rows), 0.5).view(rows, 4),
        torch.nn.functional.dropout(torch.ones(5, rows, 3).transpose(0, 1), 0.5),  # as within attention
        torch.empty(3, 2, rows).permute(2, 0, 1).uniform_(),
    ]


def test_ranks_draw_their_rows_of_what_one_process_draws():
    torch.manual_seed(3)
    with drawing.Recording() as recording:
        whole = draws(7)
    of_ranks = []
    for rank in range(3):
        torch.manual_seed(3)
        with drawing.Replaying(recording.draws, Part(SIZES, rank), list) as mode:
            mine = draws(SIZES[rank])
        assert not mode.is_void
        of_ranks.append(mine)
    for place, expected in enumerate(whole):
        assert torch.equal(torch.cat([mine[place] for mine in of_ranks], expected.shape.index(7)), expected)


@pytest.mark.parametrize(
    ("draw", "is_void", "refused"),
    [
        (lambda rows: torch.randn(rows), False, ""),
        (lambda rows: torch.randn(4), True, ""),
        (lambda rows: torch.randn(9 - rows), True, ""),
        (lambda rows: torch.randperm(rows), False, "it draws by index among the samples of the batch (randperm)"),
        (
            lambda rows: torch.randn(rows, 2, generator=torch.Generator()),
            False,
            "it draws for its samples from a torch.Generator of its own (randn)",
        ),
    ],
    ids=["rows", "no rows", "another number of rows", "permutation", "own generator"],
)
def test_a_draw_that_is_not_one_of_rows_shows_nothing_or_is_a_choice(draw, is_void, refused):
    with drawing.Recording() as recording:
        draw(7)
    with drawing.Replaying(recording.draws, Part(SIZES, 0), list) as mode:
        draw(3)
    assert (mode.is_void, mode.refused) == (is_void, refused)


def gradients(*values):
    """Return what is compared of some weights' gradients, which are tensors, or None."""
    found = {}
    for place, value in enumerate(values):
        weight = torch.zeros(()) if value is None else torch.zeros_like(value)
        weight.grad = value
        found[0, place] = gradient_of(weight)
    return found


def test_a_gradient_that_differs_is_told_with_its_norms():
    whole = gradients(torch.full((3, 4), 1.0), torch.ones(5))
    assert difference(whole, gradients(torch.full((3, 4), 1.00001), torch.ones(5)), EXACT) == ""
    found = difference(whole, gradients(torch.full((3, 4), 1.5), torch.ones(5)), EXACT)
    assert "a weight of shape [3, 4] gets a gradient of norm 5.196, where that of the batch has 3.464" in found
    assert "of norm 0," in difference(whole, gradients(None, torch.ones(5)), EXACT)
    assert difference(gradients(None), gradients(None), EXACT) == ""


def test_where_half_precision_rounds_only_a_difference_in_all_weights_is_one():
    whole = gradients(torch.ones(3), torch.ones(5))
    assert difference(whole, gradients(torch.full((3,), 1.3), torch.ones(5)), 0.05) == ""
    assert difference(whole, gradients(torch.full((3,), 1.3), torch.full((5,), 1.1)), 0.05) != ""
    unused = gradients(torch.ones(3), torch.zeros(5))  # shows nothing
    assert difference(unused, gradients(torch.full((3,), 1.3), torch.zeros(5)), 0.05) != ""


def test_of_a_large_gradient_some_elements_are_compared_and_the_norm_of_all():
    large = torch.zeros(1 << 20)
    large[5] = 1.0
    found = gradient_of(parameter := torch.nn.Parameter(torch.zeros_like(large)))
    assert found is None
    parameter.grad = large
    found = gradient_of(parameter)
    assert found.elements.numel() == 1 << 17
    assert found.norm == 1.0
    assert difference(gradients(torch.zeros_like(large)), {(0, 0): found}, EXACT) != ""


def test_kernels_that_drop_nothing_out_draw_nothing():
    q = torch.randn(2, 1, 4, 8)
    with torch.no_grad(), drawing.Recording() as mode:
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
        assert not mode.draws
        torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    assert mode.draws
