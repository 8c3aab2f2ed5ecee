"""Converting a torch optimizer to the rules of parameter servers, and checking that they can apply them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from distrun.errors import NotOfferedError, UsageError
from distrun.methods.servers.rules import Rule
from distrun.methods.servers.session import MOST_WIDTH

_SPARSE_MODULES = (torch.nn.Embedding, torch.nn.EmbeddingBag)
_KNOWN = "SGD, Adam, AdamW, Adagrad and SparseAdam of torch.optim"


def rule_of(optimizer: torch.optim.Optimizer, group: dict[str, Any], delay: int) -> Rule:
    """Return the servers' rule for the updates of `optimizer` to the parameters of `group`.

    Raises:
        NotOfferedError: there is none.
    """
    kind = type(optimizer)
    refused = [name for name in ("amsgrad", "differentiable") if group.get(name)]
    if refused:
        raise NotOfferedError(f"{kind.__name__}({refused[0]}=True) is not offered by parameter servers: leave it out")
    common = {"weight_decay": float(group.get("weight_decay", 0.0)), "maximize": bool(group.get("maximize", False))}
    if kind is torch.optim.SGD:
        own = {name: float(group[name]) for name in ("momentum", "dampening")}
        return Rule("torch.SGD", {**common, **own, "nesterov": bool(group["nesterov"]), "delay": delay})
    if kind is torch.optim.Adagrad:
        own = {"lr_decay": float(group["lr_decay"]), "eps": float(group["eps"])}
        return Rule("torch.Adagrad", {**common, **own, "initial": float(group["initial_accumulator_value"])})
    if kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SparseAdam):
        beta1, beta2 = map(float, group["betas"])
        moments = {**common, "beta1": beta1, "beta2": beta2, "eps": float(group["eps"])}
        if kind is torch.optim.SparseAdam:
            return Rule("torch.SparseAdam", moments)
        is_decoupled = kind is torch.optim.AdamW or bool(group.get("decoupled_weight_decay"))
        return Rule("torch.Adam", {**moments, "is_decoupled": is_decoupled})
    raise NotOfferedError(f"{kind.__name__} cannot run on parameter servers: allowed are {_KNOWN}, and none derived")


def delay_of(optimizer: torch.optim.Optimizer, is_wanted: bool, staleness: float, workers: int) -> int:
    """Return the number of gradients for which momentum is applied once, or 0 if momentum is not delayed.

    Raises:
        UsageError: delayed momentum is wanted, but impossible.
    """
    if not is_wanted:
        return 0
    if type(optimizer) is not torch.optim.SGD or not all(group["nesterov"] for group in optimizer.param_groups):
        raise UsageError(
            f"delayed_nesterov=True corrects the momentum of SGD(nesterov=True), and this is {type(optimizer).__name__}"
            " without it: give it that, or leave delayed_nesterov out"
        )
    if staleness == 0:
        raise UsageError("delayed_nesterov=True corrects what staleness does, and staleness is 0: leave it out")
    return workers


def sparse_weights(model: torch.nn.Module | None) -> list[tuple[Tensor, torch.nn.Module]]:
    """Return the weights of embeddings with sparse gradients, and the modules that use them."""
    modules = [] if model is None else [item for item in model.modules() if isinstance(item, _SPARSE_MODULES)]
    return [(module.weight, module) for module in modules if module.sparse]


def name_of(parameter: Tensor, given: dict[Tensor, str] | None, number: int) -> str:
    """Return the name of a parameter, or a name made of its number if no names are given.

    Raises:
        UsageError: names are given, but none for this one.
    """
    if given is None:
        return f"parameter {number}"
    name = given.get(parameter)
    if name is None:
        raise UsageError(
            f"named_parameters does not name parameter {number}, of shape {tuple(parameter.shape)}: give "
            "model.named_parameters() of the model that the optimizer trains"
        )
    return name


def check(name: str, parameter: Tensor, group: dict[str, Any], is_sparse: bool) -> None:
    """Check that a parameter can be on servers.

    Raises:
        UsageError: it cannot.
    """
    if not parameter.dtype.is_floating_point:
        raise UsageError(
            f"{name} is {parameter.dtype}, and servers keep float32: only real floating-point types can be"
        )
    if not is_sparse:
        return
    if group.get("momentum") or group.get("weight_decay"):
        raise UsageError(
            f"{name} has sparse gradients, which momentum and weight decay make dense: set both to 0 for its group"
        )
    if "betas" in group and "amsgrad" in group:
        raise UsageError(
            f"{name} has sparse gradients, which Adam does not take: use SparseAdam, SGD or Adagrad for it"
        )
    if parameter[0].numel() > MOST_WIDTH:
        raise UsageError(f"{name} has rows of {parameter[0].numel()} elements: allowed are at most {MOST_WIDTH}")
