"""Digits that the ranks learn, each from samples of its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from checking import same_on_all_ranks
from sklearn.datasets import load_digits

import distrun.torch as hvd


def accuracy_with(wrap: Callable[[torch.optim.Optimizer], torch.optim.Optimizer]) -> float:
    """Train in 80 steps by an optimizer that `wrap` wraps; return the share of unseen digits that are told right."""
    digits = load_digits()
    features, targets = torch.from_numpy(digits.data).float() / 16, torch.from_numpy(digits.target)
    own, unseen = slice(hvd.rank(), 1200, hvd.size()), slice(1200, None)
    torch.manual_seed(1)
    layers = [torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 10))
    optimizer = wrap(torch.optim.Adam(model.parameters(), 0.005))
    for _ in range(80):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(features[own]), targets[own]).backward()
        optimizer.step()
    if hasattr(optimizer, "merge"):
        optimizer.merge()
    assert same_on_all_ranks([parameter.detach() for parameter in model.parameters()])
    return float((model(features[unseen]).argmax(1) == targets[unseen]).float().mean())
