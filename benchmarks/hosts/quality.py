"""Quality: the loss of models on data they have not seen, trained on two hosts with gradients in different forms."""

from __future__ import annotations

import math
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from benchmarks.hosts.wire import meet
from benchmarks.support.comparison import Comparison
from benchmarks.support.measuring import Summary, summary
from benchmarks.support.ranks import SIZE, Rank, run

if TYPE_CHECKING:
    import torch

PLAIN = "none"
COMPRESSIONS = (PLAIN, "bf16", "int8", "int4", "powersgd(4)")
"""The members of `distrun.Compression` that are compared."""
DILOCO, LOCAL_SGD = "DiLoCo", "local SGD"
FORMS = (*COMPRESSIONS, DILOCO, LOCAL_SGD)
EVERY, MOMENTUM = 20, 0.5
"""Steps between two exchanges of the last two, and a momentum for so few of them: 0.9 would ruin the loss."""
WARM_UP = 6
"""The part of the steps, a sixth, that DiLoCo takes together at first."""
SEEDS = 3
"""More tell smaller differences, and take longer than `tables` waits: 40 tell a quarter of a percent with the MLP."""
BATCH = 16
"""Samples of a rank's batch."""
CONTEXT = 64
"""Bytes of text that a model sees."""


@dataclass(frozen=True)
class Task:
    """A model, its batches, and how long it is trained."""

    make: Callable[[], torch.nn.Module]
    batch: Callable[[torch.Generator, int], tuple[torch.Tensor, torch.Tensor]]
    """Draws so many samples to train on."""
    unseen: tuple[torch.Tensor, torch.Tensor]
    """The samples by which the model is judged."""
    steps: int
    rate: float


def compare(rank: Rank) -> Comparison:
    """Compare the losses of all models in all forms."""
    comparison = Comparison(
        f"loss on unseen data, {SIZE} hosts, one rank each",
        "model",
        FORMS,
        [],
        notes=[
            f"Cross-entropy, mean of {SEEDS} seeds, which choose the weights and the batches; AdamW with warm-up and "
            f"cosine decay, {BATCH} samples per rank, through DistributedOptimizer(compression=...); "
            f"{DILOCO}: DiLoCo(every={EVERY}, momentum={MOMENTUM}, warmup=...) with a warm-up of 1/{WARM_UP} of the "
            f"steps, {LOCAL_SGD}: LocalSGD(every={EVERY}), both judged merged.",
        ],
        unit="",
    )
    for title, make in (("MLP, digits", _perceptron), ("CNN, digits", _convolutions), ("GPT, bytes of text", _gpt)):
        task = make()
        seeds = range(1 if rank.quick else SEEDS)
        losses = {name: [_train(rank, task, name, seed) for seed in seeds] for name in FORMS}
        parameters = sum(parameter.numel() for parameter in task.make().parameters())
        comparison.add(f"{title}, {parameters // 1000}k, {task.steps} steps", _results(losses))
        more = ", ".join(f"{name} {_difference(losses[name], losses[PLAIN])}" for name in FORMS[1:])
        comparison.notes.append(f"{title}, against {PLAIN} with the same seeds: {more}.")
    return comparison


def _results(losses: dict[str, list[float]]) -> dict[str, Summary]:
    return {name: Summary(mean(values), summary(values).quartiles, len(values)) for name, values in losses.items()}


def _difference(losses: list[float], plain: list[float]) -> str:
    """Return how far losses are above the plain ones of the same seeds, and the standard error of that."""
    base = mean(plain)
    changes = [(loss - other) / base for loss, other in zip(losses, plain, strict=True)]
    error = f" +- {stdev(changes) / math.sqrt(len(changes)):.2%}" if len(changes) > 1 else ""
    return f"{mean(changes):+.2%}{error}"


def _train(rank: Rank, task: Task, form: str, seed: int) -> float:
    """Train a model, and return its loss on unseen data."""
    import torch

    torch.manual_seed(seed)
    model = task.make()
    optimizer = torch.optim.AdamW(model.parameters(), task.rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _factor(step / task.steps))
    optimizer = _wrapped(optimizer, form, task.steps)
    generator = torch.Generator().manual_seed(1000 * seed + rank.rank)
    for _ in range(task.steps):
        optimizer.zero_grad()
        _loss(model, *task.batch(generator, BATCH)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    if form in (DILOCO, LOCAL_SGD):
        optimizer.merge()
    with torch.no_grad():
        return float(_loss(model.eval(), *task.unseen))


def _wrapped(optimizer: torch.optim.Optimizer, form: str, steps: int) -> Any:
    import distrun.torch as dt

    if form == DILOCO:
        return dt.DiLoCo(optimizer, every=EVERY, momentum=MOMENTUM, warmup=steps // WARM_UP)
    if form == LOCAL_SGD:
        return dt.LocalSGD(optimizer, every=EVERY)
    compression = dt.Compression.powersgd(4) if form == "powersgd(4)" else getattr(dt.Compression, form)
    return dt.DistributedOptimizer(optimizer, compression=compression)


def _factor(progress: float) -> float:
    """Return the share of the learning rate: it rises for a tenth of the steps, then falls to a tenth as a cosine."""
    return min(1.0, 10 * progress + 0.01) * (0.55 + 0.45 * math.cos(math.pi * progress))


def _loss(model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.nn.functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


# The models -----------------------------------------------------------------------------------------------------------


def _perceptron() -> Task:
    from torch import nn

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
        )

    return _of_digits(make)


def _convolutions() -> Task:
    from torch import nn

    def make() -> nn.Module:
        layers: list[nn.Module] = []
        for inputs, outputs in ((1, 32), (32, 64), (64, 64)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 10))

    return _of_digits(make)


def _of_digits(make: Callable[[], torch.nn.Module]) -> Task:
    import torch
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(digits.images).float()[:, None] / 16
    labels = torch.from_numpy(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    seen, unseen = order[:1200], order[1200:]

    def batch(generator: torch.Generator, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = seen[torch.randint(len(seen), (count,), generator=generator)]
        return images[chosen], labels[chosen]

    return Task(make, batch, (images[unseen], labels[unseen]), 300, 2e-3)


def _gpt() -> Task:
    import torch

    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:120]
    text = torch.tensor(list(b"".join(file.read_bytes() for file in files)))
    seen, unseen = text[: len(text) * 19 // 20], text[len(text) * 19 // 20 :]

    def cut(source: torch.Tensor, generator: torch.Generator, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(source) - CONTEXT - 1, (count, 1), generator=generator)
        places = starts + torch.arange(CONTEXT)
        return source[places], source[places + 1]

    judged = cut(unseen, torch.Generator().manual_seed(7), 256)
    return Task(_transformer, lambda generator, count: cut(seen, generator, count), judged, 400, 2e-3)


def _transformer() -> torch.nn.Module:
    """Return a small GPT: three blocks of width 96 with four heads."""
    import torch
    from torch import nn

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(256, 96), nn.Embedding(CONTEXT, 96)
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(96, 4, 384, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(3)
            )
            self.norm, self.head = nn.LayerNorm(96), nn.Linear(96, 256)
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            values = self.tokens(inputs) + self.places(torch.arange(inputs.shape[1]))
            for block in self.blocks:
                values = block(values, src_mask=self.mask, is_causal=True)
            result: torch.Tensor = self.head(self.norm(values))
            return result

    return Transformer()


if __name__ == "__main__":
    run(meet, compare)
