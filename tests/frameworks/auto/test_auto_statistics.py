"""Statistics of the batch that a loss is computed with, and that its graph does not show."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - torch may be absent
from torch.nn import functional  # noqa: E402

from distrun.auto.torch import statistics  # noqa: E402
from distrun.auto.torch.parts import Part  # noqa: E402
from distrun.auto.torch.statistics import compiling  # noqa: E402
from distrun.auto.torch.statistics.following import Following, marked  # noqa: E402

pytestmark = pytest.mark.gate
SIZE = 9
WEIGHTS = torch.tensor([1.0, 2.0, 5.0])
NET = nn.Linear(4, 3)
TABLE = nn.Embedding(7, 3)


def entropy(x, y):
    return functional.cross_entropy(NET(x), y, reduction="none")


def in_place(x, y):
    x -= x.mean(0)
    return entropy(x, y).mean()


def of_one_column(x, y):
    x[:, 0] -= x[:, 0].mean()
    return entropy(x, y).mean()


def weights_without_gradient(x, y):
    with torch.no_grad():
        weights = entropy(x, y)
        weights /= weights.sum()
    return (weights * entropy(x, y)).sum()


def counts_of_unique(x, y):
    _, inverse, counts = torch.unique(y, return_inverse=True, return_counts=True)
    return (entropy(x, y) / counts[inverse]).sum()


def counts_by_scatter(x, y):
    counts = torch.zeros(3).scatter_add_(0, y, torch.ones_like(y, dtype=torch.float))
    return (entropy(x, y) / counts[y]).mean()


def whitened(x, y):
    return entropy(x @ torch.linalg.inv(x.T @ x), y).mean()


def the_hardest(x, y):
    with torch.no_grad():
        chosen = entropy(x, y).topk(3).indices
    return entropy(x[chosen], y[chosen]).mean()


def of_time_first(x, y):
    steps = x.view(SIZE, 2, 2).transpose(0, 1)
    steps = steps - steps.mean(1, keepdim=True)
    return entropy(steps.transpose(0, 1).reshape(SIZE, 4), y).mean()


def of_the_whole_batch(x, y):
    return entropy((x - x.min()) / (x.max() - x.min()), y).mean()


def conditioned(x, y):
    context = NET(x.mean(0))
    return functional.cross_entropy(NET(x) + context, y)


REFUSED = {
    "inputs normalised": lambda x, y: entropy((x - x.mean(0)) / x.std(0), y).mean(),
    "inputs normalised by torch.mean": lambda x, y: entropy(x - torch.mean(x, dim=0, keepdim=True), y).mean(),
    "inputs normalised together": lambda x, y: entropy((x - x.mean()) / x.std(), y).mean(),
    "inputs normalised by a function": lambda x, y: entropy(functional.normalize(x, dim=0), y).mean(),
    "batch_norm": lambda x, y: entropy(functional.batch_norm(x, None, None, training=True), y).mean(),
    "weights divided by their sum": lambda x, y: (WEIGHTS[y] / WEIGHTS[y].sum() * entropy(x, y)).sum(),
    "weights divided by their mean": lambda x, y: (WEIGHTS[y] / WEIGHTS[y].mean() * entropy(x, y)).mean(),
    "weights of a softmax": lambda x, y: (entropy(x, y).detach().softmax(0) * entropy(x, y)).sum(),
    "weights in a dot product": lambda x, y: torch.dot(WEIGHTS[y] / WEIGHTS[y].sum(), entropy(x, y)),
    "pos_weight": lambda x, y: functional.binary_cross_entropy_with_logits(
        NET(x)[:, 0], (y > 1).float(), pos_weight=(y < 2).sum() / (y > 1).sum().clamp(min=1)
    ),
    "class weights": lambda x, y: functional.cross_entropy(NET(x), y, weight=1 / (1 + y.bincount(minlength=3))),
    "class weights of one_hot": lambda x, y: functional.cross_entropy(
        NET(x), y, weight=1 / (1 + functional.one_hot(y, 3).sum(0))
    ),
    "clamped": lambda x, y: entropy(x, y).clamp(max=x.norm()).mean(),
    "divided by a variance": lambda x, y: entropy(x, y).mean() / x.var(),
    "divided by deviations": lambda x, y: entropy(x, y).sum() / ((x - x.mean(0)) ** 2).sum(),
    **{each.__name__: each for each in (in_place, of_one_column, weights_without_gradient, counts_of_unique)},
    **{each.__name__: each for each in (counts_by_scatter, whitened, the_hardest, of_time_first, conditioned)},
    **{each.__name__: each for each in (of_the_whole_batch,)},
}


def masked(x, y):
    mask = (y > 0).float()
    return (mask * entropy(x, y)).sum() / mask.sum().clamp(min=1)


def measured(x, y):
    loss = entropy(x, y).mean()
    output = NET(x)
    with torch.no_grad():
        correct = (output.argmax(1) == y).float().mean()
        correct += (y == y.max()).sum() / len(y)
    unexplained = ((output[:, 0] - y) ** 2).sum() / ((y - y.float().mean()) ** 2).sum()  # of no loss
    return loss if correct.item() >= 0 and unexplained.isfinite() else 2 * loss


def padded(x, y):
    tokens, lengths = y.view(-1, 1).repeat(1, 6), y + 1
    tokens = tokens[:, : int(lengths.max())]
    mask = torch.arange(lengths.max())[None] < lengths[:, None]
    embedded = TABLE(tokens) * mask[:, :, None]
    pooled = embedded.sum(1) / lengths[:, None]
    assert mask.any()
    return functional.cross_entropy(pooled, y) + entropy(x, y).mean()


def packed(x, y):
    lengths, order = (y + 1).sort(descending=True)
    sequences = TABLE(y.view(-1, 1).repeat(1, 3))[order]
    packed = nn.utils.rnn.pack_padded_sequence(sequences, lengths.cpu(), batch_first=True)
    output, _ = nn.utils.rnn.pad_packed_sequence(nn.GRU(3, 3)(packed)[0], batch_first=True)
    return functional.cross_entropy(output.mean(1), y[order])


def normalised_alone(x, y):
    x = (x - x.mean(1, keepdim=True)) / x.std(dim=1, keepdim=True)
    x = functional.normalize(x) / x.norm(dim=-1, keepdim=True).clamp(min=1e-3)
    images = x.view(SIZE, 1, 2, 2)
    images = images - images.mean(dim=(1, 2, 3), keepdim=True)
    steps = images.squeeze(1).transpose(0, 1)
    steps = (steps - steps.mean(0)) / steps.amax(dim=0)
    return entropy(steps.transpose(0, 1).flatten(1), y).mean()


def mixed_up(x, y):
    order, share = torch.randperm(len(x)), 0.3
    x = share * x + (1 - share) * x[order]
    x = torch.where(torch.rand_like(x) > 0.1, x, torch.zeros_like(x)).flip(1)
    return share * entropy(x, y).mean() + (1 - share) * entropy(x, y[order]).mean()


def by_layers(x, y):
    x = functional.dropout(functional.layer_norm(x, (4,)))
    return functional.cross_entropy(NET(functional.group_norm(x, 2)), y, label_smoothing=0.1)


def smoothed(x, y):
    target = functional.one_hot(y, 3).float() * 0.9 + 0.1 / 3
    return -(target * NET(x).log_softmax(1)).sum(1).mean() + (target / target.sum(1, keepdim=True)).sum() * 0


def of_instances(x, y):
    images = functional.batch_norm(x.view(1, SIZE, 2, 2), None, None, training=True)
    return entropy(images.view(SIZE, 4), y).mean()


def adversarial(x, y):
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(entropy(x, y).sum(), x)
    return entropy(x.detach() + 0.1 * slope.sign(), y).mean()


def of_single_samples(x, y):
    losses = [functional.mse_loss(NET(row / row.abs().max()), NET(row)) for row in x]
    return torch.stack(losses).mean()


def balanced(x, y):
    first, second = entropy(x, y).mean(), NET(x).pow(2).mean()
    return first + first.detach() / second.detach() * second


ALLOWED = {
    "a mean": lambda x, y: entropy(x, y).mean(),
    "statistics of all data": lambda x, y: entropy((x - WEIGHTS.mean()) / WEIGHTS.std(), y).mean(),
    "weights divided after the sum": lambda x, y: (WEIGHTS[y] * entropy(x, y)).sum() / WEIGHTS[y].sum(),
    "a selection": lambda x, y: entropy(x, y)[y > 0].mean(),
    "numbers of Python": lambda x, y: entropy(x, y).mean() * (1 if x.max().item() > 9 else 2),
    **{each.__name__: each for each in (masked, measured, padded, packed, normalised_alone, mixed_up, by_layers)},
    **{each.__name__: each for each in (smoothed, of_instances, adversarial, of_single_samples, balanced)},
}


@pytest.fixture
def following():
    torch.manual_seed(3)
    following = Following()
    yield following
    following.end()
    assert not following.is_entered


def found(following, loss_of):
    x, y = torch.randn(SIZE, 4), torch.tensor([0, 1, 2, 2, 1, 0, 1, 2, 2])
    following.begin((x, y), SIZE)
    return marked([loss_of(x, y)])


@pytest.mark.parametrize("name", REFUSED)
def test_a_statistic_that_goes_into_the_loss_is_found(following, name):
    first = found(following, REFUSED[name])[0]
    assert "of the batch's samples (test_auto_statistics.py:" in first.words


@pytest.mark.parametrize("name", ALLOWED)
def test_what_the_parts_can_compute_alike_is_no_statistic(following, name):
    assert found(following, ALLOWED[name]) == []


def test_a_dimension_of_as_many_as_there_are_samples_is_told_from_them(following):
    x = torch.randn(SIZE, 4)
    following.begin(x, SIZE)
    copies = torch.stack([x.unsqueeze(0)[0]] * SIZE)
    assert marked([NET(copies - copies.mean(0)).sum()]) == []
    assert marked([NET(copies - copies.mean(1, keepdim=True)).sum()])


def test_the_first_iterations_with_an_optimizer_are_followed_and_then_one_in_100_steps(monkeypatch):
    monkeypatch.setattr(statistics, "_iterations", 0)
    monkeypatch.setattr(statistics, "_followed_at", 0)
    followed = []
    for iteration in range(40):
        monkeypatch.setattr(statistics.session, "steps", 10 * iteration)
        statistics.begin(torch.randn(SIZE, 4), Part((SIZE, SIZE - 2), 0), is_new=iteration == 30)
        followed += [iteration] * statistics._following.is_on
        statistics.end()
    assert followed == [0, 1, 2, 3, 13, 23, 30, 31, 32, 33]


def test_compiled_functions_run_as_they_are_written_while_they_are_followed(monkeypatch):
    monkeypatch.setattr(statistics, "_iterations", 0)
    monkeypatch.setattr(compiling, "_is_compiling", False)
    monkeypatch.setattr(torch, "compile", torch.compile)  # and put back
    compiling.install()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    run = torch.compile(lambda x: NET(x - x.mean(0)).sum(), backend=backend)
    x = torch.randn(SIZE, 4)
    statistics.begin(x, Part((SIZE, SIZE - 2), 0))
    assert marked([run(x)])
    assert not graphs
    statistics.end()
    run(x)
    assert graphs


def test_a_maximum_is_found_with_its_value(following):
    x = torch.rand(SIZE, 4)
    following.begin(x, SIZE)
    (statistic,) = marked([NET(x / x.max()).sum()])
    assert statistic.extreme == max(x.flatten().tolist())


def test_nothing_is_found_after_the_batch(following):
    x = torch.randn(SIZE, 4)
    following.begin(x, SIZE)
    following.end()
    assert torch._C._len_torch_function_stack() == 0
    assert marked([NET(x - x.mean(0)).sum()]) == []


def test_batches_may_be_dictionaries_or_objects(following):
    x = torch.randn(SIZE, 4)
    following.begin(SimpleNamespace(features={"x": x}), SIZE)
    assert marked([NET(x - x.mean(0)).sum()])


def test_the_samples_may_be_in_the_second_dimension(following):
    x = torch.randn(5, SIZE, 4)
    following.begin([x], SIZE)
    assert marked([NET(x - x.mean(1, keepdim=True)).sum()])
    assert marked([NET(x - x.mean(0)).sum()]) == []


def test_tensors_are_not_kept_alive(following):
    x = torch.randn(SIZE, 4)
    following.begin(x, SIZE)
    y = x + 1
    before = sum(type(each) is torch.Tensor for each in gc.get_objects())
    del y
    assert sum(type(each) is torch.Tensor for each in gc.get_objects()) == before - 1


def test_a_mode_that_the_script_has_entered_keeps_its_place(following):
    x = torch.randn(SIZE, 4)
    with torch.device("meta"):
        following.begin(x, SIZE)
        assert not following.is_on
    following.begin(x, SIZE)
    with torch.device("meta"):
        following.end()
        assert torch.ones(1).is_meta
    assert not torch.ones(1).is_meta


def test_an_error_of_the_following_is_none_of_the_training(following, monkeypatch):
    monkeypatch.setattr(Following, "_after", lambda *arguments: 1 / 0)
    assert found(following, REFUSED["inputs normalised"]) == []
