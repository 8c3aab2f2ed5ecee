"""AsyncOptimizer: a torch optimizer whose parameters are on servers, and whose workers need not wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from distrun.errors import NotOfferedError, UsageError
from distrun.runtime import world
from distrun.runtime.collectives.synchronisation import barrier
from distrun.servers.layout import Layout, Parameter
from distrun.servers.rules import Rule, slots_of
from distrun.servers.session import MOST_WIDTH, Session, check_staleness

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
    """Keep the parameters of `optimizer` on the job's parameter servers; returns it.

    `step()` pushes this worker's gradients to the servers, which apply them on arrival, each with the learning rate
    that its group has at this moment, and brings the newest parameters. All workers begin with the parameters of
    rank 0. The rest of a training loop stays as it is: each worker trains on its own part of the data.

    Args:
        optimizer: SGD, Adam, AdamW, Adagrad or SparseAdam of torch. It stays the same object, with its groups and its
            schedulers; its class becomes a subclass of its class.
        staleness: the parameters that a worker computes step c with contain the gradients, of all workers, of all steps
            before c - staleness. 0 is synchronous: the servers apply the average of all workers' gradients, once per
            step. Otherwise every gradient is an update of its own, and a worker waits only for one that is further
            behind; with float("inf") it waits for nobody.
        named_parameters: such as `model.named_parameters()`: names for error messages. Must name every parameter.
        model: the module whose embeddings with sparse gradients (`torch.nn.Embedding(..., sparse=True)`) are kept by
            rows: a forward pass pulls the rows of its batch, and `step` pushes those that have a gradient. SGD without
            momentum, Adagrad and SparseAdam, all without weight decay, can do that.
        overlap: whether the exchange with the servers goes on while the next step is computed. A worker's own gradient
            is then seen one step later. With staleness 0 there is nothing to overlap with.
        delayed_nesterov: apply the momentum of SGD(nesterov=True) once for as many gradients as there are workers, to
            their average, and scale each gradient by the number of workers: for staleness above 0, where momentum
            otherwise adds up what was computed with old parameters (arXiv 2401.09135).

    Parameters are float32 on the servers, whatever they are here.

    It has two more methods: `synchronize()` waits for what is under way, and brings the newest parameters, with all
    rows of embeddings, into the model: before an evaluation, or before saving it. `close()` leaves: other workers wait
    for this one no more. The end of the script does that, too.

    `state_dict()` fetches the optimizer's state from the servers; it is that of the plain optimizer, and any number of
    servers can take it. Only the ranks that want it need call it. `load_state_dict()` is called by all workers; the
    parameters and the state of rank 0 go to the servers.

    Raises:
        UsageError: the job has no servers, or an argument cannot be.
        NotOfferedError: the servers cannot do what this optimizer does.
        MismatchError: the workers have different parameters.
    """
    staleness = check_staleness(staleness)
    if hasattr(optimizer, "_distrun_worker"):
        raise UsageError("this optimizer is an AsyncOptimizer already: make one of each optimizer once")
    sparse = _sparse_weights(model)
    workers = world.size()
    delay = _delay(optimizer, delayed_nesterov, staleness, workers)
    rules = tuple(_rule(optimizer, group, delay) for group in optimizer.param_groups)
    given = None if named_parameters is None else {parameter: name for name, parameter in named_parameters}
    parameters: list[Tensor] = []
    described = []
    for index, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            name = _name(parameter, given, len(parameters))
            is_sparse = any(parameter is weight for weight, _ in sparse)
            _check(name, parameter, group, is_sparse)
            parameters.append(parameter)
            described.append(Parameter(name, tuple(parameter.shape), index, is_sparse))
    layout = Layout(tuple(described), rules, workers, staleness == 0)
    worker = _Worker(optimizer, parameters, Session(layout), staleness, overlap and staleness > 0)
    optimizer._distrun_worker = worker  # type: ignore[attr-defined]
    kind = type(optimizer)
    optimizer.__class__ = type(kind.__name__, (_AsyncOptimizer, kind), {"__module__": kind.__module__})
    for weight, module in sparse:
        worker.pull_before(module, weight)
    worker.start()
    return optimizer


class _AsyncOptimizer:
    """The methods that differ from those of the plain optimizer."""

    _distrun_worker: _Worker

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Push the gradients, and bring newer parameters."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._distrun_worker.step()
        return loss

    def synchronize(self) -> None:
        """Wait for what is under way, and bring the newest parameters into the model, with all rows of embeddings."""
        self._distrun_worker.synchronize()

    def close(self) -> None:
        """Leave: other workers wait for this one no more."""
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
        """Give the servers a state, with the parameters that rank 0 has at this moment. Called by all workers."""
        super().load_state_dict(state_dict)  # type: ignore[misc]
        self._distrun_worker.store_state()


class _Worker:
    """One optimizer's exchange with the servers."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: list[Tensor],
        session: Session,
        staleness: float,
        overlap: bool,
    ) -> None:
        self._optimizer = optimizer
        self._parameters = parameters
        self._session = session
        self._staleness = staleness
        self._overlap = overlap
        self._dense = [index for index, item in enumerate(session.layout.parameters) if not item.is_sparse]
        self._sparse = session.layout.tables()

    @torch.no_grad()
    def start(self) -> None:
        """Have all workers begin with the parameters of rank 0."""
        if world.rank() == 0:
            self._session.start(self._own_values())
        self._session.pull(self._staleness)
        self._load()

    def step(self) -> None:
        """Push the gradients of a step, and take newer parameters: those of this exchange, or of the one before."""
        if self._session.await_values():
            self._load()
        present = [parameter.grad is not None for parameter in self._parameters]
        for index in self._dense:
            self._write_gradient(index)
        sparse = {index: self._sparse_gradient(index) for index in self._sparse if present[index]}
        rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        self._session.push(rates, present, sparse, self._staleness, ahead=int(self._overlap))
        if not self._overlap:
            self._session.await_values()
            self._load()

    def _write_gradient(self, index: int) -> None:
        gradient = self._parameters[index].grad
        target = torch.from_numpy(self._session.gradient_of(index))
        if gradient is None:
            target.zero_()
        elif gradient.is_sparse:
            name = self._session.layout.parameters[index].name
            raise UsageError(
                f"the gradient of {name} is sparse, and it is not known as an embedding: give "
                "AsyncOptimizer(..., model=model) the model that has it"
            )
        else:
            target.copy_(gradient)

    def _sparse_gradient(self, index: int) -> tuple[Any, Any]:
        gradient = self._parameters[index].grad
        assert gradient is not None
        if not gradient.is_sparse:
            rows = torch.arange(gradient.shape[0])
            return rows.numpy(), gradient.float().cpu().numpy()
        gradient = gradient.coalesce()
        return gradient.indices()[0].cpu().numpy(), gradient.values().float().cpu().numpy()

    def _load(self) -> None:
        for index in self._dense:
            self._parameters[index].data.copy_(torch.from_numpy(self._session.value_of(index)))

    def pull_before(self, module: torch.nn.Module, weight: Tensor) -> None:
        """Have an embedding pull the rows of each batch before it uses them."""
        index = next(number for number, own in enumerate(self._parameters) if own is weight)

        def pull(_: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
            self._pull_rows(index, torch.unique(inputs[0]))

        module.register_forward_pre_hook(pull)

    def _pull_rows(self, index: int, rows: Tensor) -> None:
        found = self._session.rows(index, rows.cpu().numpy().astype(np.int64, copy=False), self._staleness)
        weight = self._parameters[index].data
        weight[rows.to(weight.device)] = torch.from_numpy(found).to(weight)

    @torch.no_grad()
    def synchronize(self) -> None:
        """Bring the newest parameters into the model."""
        self._session.pull(self._staleness)
        self._load()
        for index in self._sparse:
            self._pull_rows(index, torch.arange(self._parameters[index].shape[0]))

    def close(self) -> None:
        """Leave."""
        self._session.close()

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def fetch_state(self) -> None:
        """Put the state that the servers have where the plain optimizer has its own."""
        _, slots, steps = self._session.gather()
        state = self._optimizer.state
        for index, (parameter, described) in enumerate(
            zip(self._parameters, self._session.layout.parameters, strict=True)
        ):
            if not steps.get(index):
                continue
            rule = self._session.layout.rules[described.group]
            own: dict[str, Any] = {
                name: torch.from_numpy(slots[slot][index]) for slot, name in enumerate(slots_of(rule))
            }
            if rule.name == "torch.SparseAdam":
                own["step"] = steps[index]
            elif rule.name != "torch.SGD" or rule.settings["delay"]:
                own["step"] = torch.tensor(float(steps[index]))
            if own:
                state[parameter] = own

    def forget_state(self) -> None:
        """Free what `fetch_state` has brought."""
        self._optimizer.state.clear()

    def store_state(self) -> None:
        """Give the servers the parameters and the state that rank 0 has."""
        self._session.await_values()
        barrier()  # nobody pushes meanwhile
        if world.rank() == 0:
            self._session.restore(self._own_values(), *self._own_state())
        barrier()
        self.forget_state()
        self.synchronize()

    def _own_state(self) -> tuple[list[dict[int, Any]], dict[int, int]]:
        layout = self._session.layout
        slots: list[dict[int, Any]] = [{} for _ in range(layout.slots)]
        steps = {}
        for index, (parameter, described) in enumerate(zip(self._parameters, layout.parameters, strict=True)):
            state = self._optimizer.state.get(parameter, {})
            for slot, (name, initial) in zip(slots, slots_of(layout.rules[described.group]).items(), strict=False):
                value = state.get(name)
                slot[index] = np.full(described.shape, initial, np.float32) if value is None else _array(value)
            steps[index] = int(state.get("step", 1 if state.get("momentum_buffer") is not None else 0))
        return slots, steps

    def _own_values(self) -> dict[int, Any]:
        return {index: _array(parameter) for index, parameter in enumerate(self._parameters)}


def _array(tensor: Tensor) -> Any:
    return tensor.detach().float().cpu().contiguous().numpy()


def _rule(optimizer: torch.optim.Optimizer, group: dict[str, Any], delay: int) -> Rule:
    """Return the rule that does what an optimizer does with a group.

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


def _delay(optimizer: torch.optim.Optimizer, is_wanted: bool, staleness: float, workers: int) -> int:
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


def _name(parameter: Tensor, given: dict[Tensor, str] | None, number: int) -> str:
    if given is None:
        return f"parameter {number}"
    name = next((name for own, name in given.items() if own is parameter), None)
    if name is None:
        raise UsageError(
            f"named_parameters does not name parameter {number}, of shape {tuple(parameter.shape)}: give "
            "model.named_parameters() of the model that the optimizer trains"
        )
    return name


def _check(name: str, parameter: Tensor, group: dict[str, Any], is_sparse: bool) -> None:
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
