"""A worker's side of AsyncOptimizer: it pushes gradients, pulls parameters, and transfers states of checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from distrun.errors import UsageError
from distrun.methods.servers.rules import slots_of
from distrun.methods.servers.session import Session
from distrun.runtime.collectives.synchronisation import barrier
from distrun.runtime.world import world


class Worker:
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
        """Load the parameters of rank 0 on all workers."""
        if world.rank() == 0:
            self._session.start(self._own_values())
        self._session.pull(self._staleness)
        self._load()

    def step(self) -> None:
        """Push the gradients of a step, and load newer parameters, from this exchange or the one before."""
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
        """Make an embedding pull the rows of each batch before it uses them."""
        index = next(number for number, own in enumerate(self._parameters) if own is weight)

        def pull(_: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
            if self._session.is_open:
                self._pull_rows(index, torch.unique(inputs[0]))

        module.register_forward_pre_hook(pull)

    def _pull_rows(self, index: int, rows: Tensor) -> None:
        found = self._session.rows(index, rows.cpu().numpy().astype(np.int64, copy=False), self._staleness)
        weight = self._parameters[index].data
        weight[rows.to(weight.device)] = torch.from_numpy(found).to(weight)

    @torch.no_grad()
    def synchronize(self) -> None:
        """Load the newest parameters into the model."""
        self._session.pull(self._staleness)
        self._load()
        for index in self._sparse:
            self._pull_rows(index, torch.arange(self._parameters[index].shape[0]))

    def close(self) -> None:
        """Leave the servers."""
        self._session.close()

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def fetch_state(self) -> None:
        """Load the servers' state into the state of the plain optimizer."""
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
        """Free the state that `fetch_state` has loaded."""
        self._optimizer.state.clear()

    def store_state(self) -> None:
        """Send rank 0's parameters and state to the servers."""
        self._session.await_values()
        barrier()  # so that no worker pushes meanwhile
        if world.rank() == 0:
            self._session.start(self._own_values(), *self._own_state())
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
