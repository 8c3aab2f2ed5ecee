"""PowerSGD's approximation: exact for matrices of a low rank, and what it loses of others is added to the next step."""

import numpy as np
import pytest

from distrun.tensor_fusion.low_rank import LowRank, is_worthwhile


def random(rows, columns):
    return np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)


def reduced(approximations, tensors, *, is_sum=False, are_used=True):
    """The results on all ranks of a step, which must be equal."""
    combine = np.sum if is_sum else np.mean
    p = combine([one.project(tensor) for one, tensor in zip(approximations, tensors, strict=True)], 0)
    q = combine([one.look(p.copy()) for one in approximations], 0)
    results = [one.result(q.copy(), len(tensors) if is_sum else 1) for one in approximations]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
    for one in approximations if are_used else ():
        one.keep()
    return results[0]


@pytest.mark.parametrize("is_sum", [False, True])
def test_an_average_of_low_rank_is_exact_from_the_first_step_on(is_sum):
    generator = np.random.default_rng(1)
    left = generator.standard_normal((40, 3))
    tensors = [(left @ generator.standard_normal((3, 5 * 7))).astype(np.float32).reshape(40, 5, 7) for _ in range(3)]
    before = [tensor.copy() for tensor in tensors]
    approximations = [LowRank((40, 5, 7), 3, random) for _ in tensors]
    exact = np.sum(tensors, 0) if is_sum else np.mean(tensors, 0)
    for _ in range(3):
        found = reduced(approximations, tensors, is_sum=is_sum)
        np.testing.assert_allclose(found.reshape(40, 5, 7), exact, atol=1e-4)
    for tensor, was in zip(tensors, before, strict=True):
        np.testing.assert_array_equal(tensor, was)


@pytest.mark.parametrize("is_sum", [False, True])
def test_in_the_long_run_nothing_is_lost(is_sum):
    generator = np.random.default_rng(2)
    tensors = [generator.standard_normal((30, 20)).astype(np.float32) for _ in range(2)]
    exact = np.sum(tensors, 0) if is_sum else np.mean(tensors, 0)
    approximations = [LowRank((30, 20), 2, random) for _ in tensors]
    total, errors = np.zeros((30, 20)), []
    for count in range(1, 81):
        total += reduced(approximations, tensors, is_sum=is_sum)
        errors.append(np.linalg.norm(total / count - exact) / np.linalg.norm(exact))
    assert errors[0] > 0.5
    assert errors[-1] < 0.1
    assert errors[-1] < errors[20] < errors[0]


def test_a_result_that_is_not_used_changes_nothing():
    tensors = [random(30, 20), random(20, 30).T.copy()]
    plain, other = ([LowRank((30, 20), 2, random) for _ in tensors] for _ in range(2))
    for _ in range(3):
        reduced(other, [tensor * 5 - 1 for tensor in tensors], are_used=False)
        np.testing.assert_array_equal(reduced(other, tensors), reduced(plain, tensors))


@pytest.mark.parametrize("odd", [np.inf, np.nan])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_after_what_is_not_finite_all_begin_anew(odd):
    tensors = [random(30, 20), random(20, 30).T.copy()]
    approximations = [LowRank((30, 20), 2, random) for _ in tensors]
    spoilt = [tensors[0], tensors[1].copy()]
    spoilt[1][3, 4] = odd
    assert not np.isfinite(reduced(approximations, spoilt)).all()
    fresh = [LowRank((30, 20), 2, random) for _ in tensors]
    np.testing.assert_array_equal(reduced(approximations, tensors), reduced(fresh, tensors))


def test_zeros_give_zeros():
    approximations = [LowRank((30, 20), 4, random)]
    assert not reduced(approximations, [np.zeros((30, 20), np.float32)]).any()


@pytest.mark.parametrize(
    ("shape", "rank", "expected"),
    [
        ((100,), 1, False),
        ((), 1, False),
        ((10, 10), 4, False),
        ((100, 100), 4, True),
        ((64, 3, 3, 3), 4, True),
        ((16, 1, 3, 3), 4, False),
    ],
)
def test_what_is_approximated(shape, rank, expected):
    assert is_worthwhile(shape, rank) == expected
