"""AsyncOptimizer: a torch optimizer with its parameters on servers, so that workers need not wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from distrun.errors import NotOfferedError, UsageError
from distrun.methods.servers.layout import Layout, Parameter
from distrun.methods.servers.rules import Rule
from distrun.methods.servers.session import MOST_WIDTH, Session, check_staleness, endpoints
from distrun.runtime.world import world
from distrun.torch.asynchronous.worker import Worker

_SPARSE_MODULES = (torch.nn.Embedding, torch.nn.EmbeddingBag)
_KNOWN = "SGD, Adam, AdamW, Adagrad and SparseAdam of torch.optim"


def AsyncOptimizer(  # noqa: N802 - a class, as far as its users see
    optimizer: torch.optim.Optimizer,
    staleness: float = 4,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    *,
    model: torch.nn.Module | None = None,
    overlap: bool = True,
    delayed_nesterov: bool = False,
) -> Any:
    """Keep the parameters of `optimizer` on the job's parameter servers, and return it.

    `step()` pushes this worker's gradients to the servers, which apply them on arrival, each with the present learning
    rate of its group, and pulls the newest parameters. All workers begin with the parameters of rank 0. The rest of a
    training loop stays as it is: each worker trains on its own part of the data.

    Args:
        optimizer: SGD, Adam, AdamW, Adagrad or SparseAdam of torch. It stays the same object, with its groups and its
            schedulers, but its class becomes a subclass of its class.
        staleness: in step c a worker uses parameters that contain the gradients of all workers of all steps before
            c - staleness. 0 is synchronous: the servers apply the average of all workers' gradients, once per step.
            Otherwise every gradient is an update of its own, and a worker waits only for workers that are further
            behind. With float("inf") it never waits.
        named_parameters: such as `model.named_parameters()`: names for error messages. Must name every parameter.
        model: the module whose embeddings with sparse gradients (`torch.nn.Embedding(..., sparse=True)`) are kept by
            rows: a forward pass pulls the rows of its batch, and `step` pushes the rows that have a gradient. This
            needs SGD without momentum, Adagrad or SparseAdam, all without weight decay.
        overlap: whether the exchange with the servers continues while the next step is computed. A worker then sees its
            own gradient one step later. With staleness 0 there is nothing to overlap with.
        delayed_nesterov: apply the momentum of SGD(nesterov=True) once to the average of as many gradients as there are
            workers, and scale each gradient by the number of workers. For staleness above 0, where momentum otherwise
            adds up gradients that were computed with old parameters (arXiv 2401.09135).

    Parameters are float32 on the servers, whatever their dtype on the workers.

    The optimizer gets two more methods. `synchronize()` waits for pending exchanges and loads the newest parameters,
    with all rows of embeddings, into the model. Call it before you evaluate or save the model. `close()` leaves the
    servers: other workers no longer wait for this one. The end of the script does that, too.

    `state_dict()` fetches the optimizer's state from the servers, in the format of the plain optimizer, which any
    number of servers can load. Only the ranks that need it call it. `load_state_dict()` is called by all workers, and
    the parameters and the state of rank 0 go to the servers.

    Raises:
        UsageError: the job has no servers, or an argument is impossible.
        NotOfferedError: the servers cannot do what this optimizer does.
        MismatchError: the workers have different parameters.
    """
    staleness = check_staleness(staleness)
    endpoints()
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(f"AsyncOptimizer wraps an optimizer of torch.optim, not {type(optimizer).__name__}")
    if hasattr(optimizer, "_distrun_worker"):
        raise UsageError("this optimizer is an AsyncOptimizer already: make one of each optimizer once")
    sparse = _sparse_weights(model)
    workers = world.size()
    delay = _delay_of(optimizer, delayed_nesterov, staleness, workers)
    rules = tuple(_rule_of(optimizer, group, delay) for group in optimizer.param_groups)
    given = None if named_parameters is None else {parameter: name for name, parameter in named_parameters}
    parameters: list[Tensor] = []
    described = []
    for index, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            name = _name_of(parameter, given, len(parameters))
            is_sparse = any(parameter is weight for weight, _ in sparse)
            _check(name, parameter, group, is_sparse)
            parameters.append(parameter)
            described.append(Parameter(name, tuple(parameter.shape), index, is_sparse))
    layout = Layout(tuple(described), rules, workers, staleness == 0)
    worker = Worker(optimizer, parameters, Session(layout), staleness, overlap and staleness > 0)
    optimizer._distrun_worker = worker  # type: ignore[attr-defined]
    kind = type(optimizer)
    optimizer.__class__ = type(kind.__name__, (_AsyncOptimizer, kind), {"__module__": kind.__module__})
    for weight, module in sparse:
        worker.pull_before(module, weight)
    worker.start()
    return optimizer


class _AsyncOptimizer:
    """The methods that differ from the plain optimizer's."""

    _distrun_worker: Worker

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Push the gradients, and load newer parameters into the model."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._distrun_worker.step()
        return loss

    def synchronize(self) -> None:
        """Wait for pending exchanges, and load the newest parameters, with all rows of embeddings, into the model."""
        self._distrun_worker.synchronize()

    def close(self) -> None:
        """Leave the servers, so that other workers no longer wait for this one."""
        self._distrun_worker.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the plain optimizer, fetched from the servers."""
        worker = self._distrun_worker
        worker.fetch_state()
        try:
            found: dict[str, Any] = super().state_dict()  # type: ignore[misc]
        finally:
            worker.forget_state()
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Send a state, with the present parameters of rank 0, to the servers. All workers call this."""
        super().load_state_dict(state_dict)  # type: ignore[misc]
        self._distrun_worker.store_state()


# The rules of the servers ---------------------------------------------------------------------------------------------


def _rule_of(optimizer: torch.optim.Optimizer, group: dict[str, Any], delay: int) -> Rule:
    """Return the servers' rule for the updates of `optimizer` to the parameters of `group`."""
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


def _delay_of(optimizer: torch.optim.Optimizer, is_wanted: bool, staleness: float, workers: int) -> int:
    """Return the number of gradients for which momentum is applied once, or 0 if momentum is not delayed."""
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


def _sparse_weights(model: torch.nn.Module | None) -> list[tuple[Tensor, torch.nn.Module]]:
    """Return the weights of embeddings with sparse gradients, and the modules that use them."""
    modules = [] if model is None else [item for item in model.modules() if isinstance(item, _SPARSE_MODULES)]
    return [(module.weight, module) for module in modules if module.sparse]


def _name_of(parameter: Tensor, given: dict[Tensor, str] | None, number: int) -> str:
    """Return the name of a parameter, or a name made of its number if no names are given."""
    if given is None:
        return f"parameter {number}"
    name = given.get(parameter)
    if name is None:
        raise UsageError(
            f"named_parameters does not name parameter {number}, of shape {tuple(parameter.shape)}: give "
            "model.named_parameters() of the model that the optimizer trains"
        )
    return name


def _check(name: str, parameter: Tensor, group: dict[str, Any], is_sparse: bool) -> None:
    """Check that a parameter can be on servers."""
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
