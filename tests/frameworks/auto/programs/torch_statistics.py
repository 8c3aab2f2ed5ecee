"""Small trainings with statistics of samples, of parts of samples and of all data, none of which is the batch's."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as scripts do
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(5)
X = torch.randn(96, 6) * 2 + 1
Y = (X @ torch.randn(6, 3)).argmax(1)
MEAN, STD = X.mean(0), X.std(0)
PROJECTION = torch.randn(6, 3)
CLASS_WEIGHTS = len(Y) / (3 * Y.bincount(minlength=3).float())


def normalised_by_all_data(net, x, y):
    return F.cross_entropy(net((x - MEAN) / STD), y, CLASS_WEIGHTS)


def normalised_one_by_one(net, x, y):
    x = (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-6)
    return F.cross_entropy(net(F.normalize(x)), y)


def normalised_steps_first(net, x, y):
    steps = x.view(len(x), 3, 2).transpose(0, 1)
    steps = steps - steps.mean(0)
    return F.cross_entropy(net(steps.permute(1, 0, 2).reshape(len(x), 6)), y)


def normalised_by_layers(net, x, y):
    return F.cross_entropy(net(NORM(x)), y) + F.mse_loss(net(F.layer_norm(x, (6,))), F.one_hot(y, 3).float())


def weighted_after_the_sum(net, x, y):
    weights = torch.tensor([1.0, 2.0, 5.0])[y]
    return (weights * F.cross_entropy(net(x), y, reduction="none")).sum() / weights.sum()


def masked(net, x, y):
    lengths = y + 1
    mask = torch.arange(int(lengths.max()) + 3)[None, :6] < lengths[:, None]
    mask = F.pad(mask, (0, 6 - mask.size(1)))
    assert mask.any()
    x = x * mask / mask.sum(1, keepdim=True)
    return F.cross_entropy(net(x[:, : x.size(1)]), y)


def attending(net, x, y):
    scores = x[:, :, None] * x[:, None, :]
    scores = scores.masked_fill(x[:, None, :] < 0, -1e4)
    return F.cross_entropy(net((scores.softmax(2) @ x[:, :, None]).squeeze(2)), y)


def sorted_by_length(net, x, y):
    _, order = (y + 1).sort(descending=True, stable=True)
    packed = nn.utils.rnn.pack_padded_sequence(x[order].view(-1, 3, 2), (y + 1)[order], batch_first=True)
    padded, _ = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True, total_length=3)
    return F.cross_entropy(net(padded.reshape(-1, 6)), y[order])


def distilled(net, x, y):
    with torch.no_grad():
        target = (x @ PROJECTION).softmax(1)
        best = target.amax(1)
    return F.kl_div(net(x).log_softmax(1), target, reduction="batchmean") + (best * net(x).pow(2).mean(1)).mean()


def with_metrics(net, x, y):
    output = net(x)
    loss = F.cross_entropy(output, y)
    accuracy = (output.argmax(1) == y).float().mean()
    spread = (x - x.mean(0)) / x.std(0)
    residual = ((output[:, 0] - y) ** 2).sum() / ((y - y.float().mean()) ** 2).sum()
    assert accuracy >= 0
    assert spread.isfinite().all()
    assert torch.is_tensor(residual)
    return loss


def scaled_by_a_bound_that_all_parts_reach(net, x, y):
    pixels = x.clamp(0, 1)
    return F.cross_entropy(net((pixels - pixels.min()) / pixels.max()), y)


def adversarial(net, x, y):
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(F.cross_entropy(net(x), y, reduction="sum"), x)
    return F.cross_entropy(net((x + 0.1 * slope.sign()).detach()), y)


for loss_of in (
    normalised_by_all_data,
    normalised_one_by_one,
    normalised_steps_first,
    normalised_by_layers,
    weighted_after_the_sum,
    masked,
    attending,
    sorted_by_length,
    distilled,
    with_metrics,
    scaled_by_a_bound_that_all_parts_reach,
    adversarial,
):
    torch.manual_seed(1)
    NORM = nn.BatchNorm1d(6, affine=False)
    net = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _epoch in range(2):
        for x, y in DataLoader(TensorDataset(X, Y), batch_size=12, shuffle=True):
            optimizer.zero_grad()
            loss_of(net, x, y).backward()
            optimizer.step()
    print(loss_of.__name__, net.weight.abs().sum().item())
