"""Checkpoints of models, optimizers and all that has a state_dict: `checkpoint.py FOLDER`."""

import shutil
import sys
from pathlib import Path

import torch
from checking import batches, check, mine, network, run_checks, same_on_all_ranks
from expecting import raises
from one_process import closure_of

import distrun.torch as hvd
from distrun.checkpoint import CheckpointManager
from distrun.errors import UsageError

FOLDER = Path(sys.argv[1])
OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, 0.01, amsgrad=True),
    "AdamW": lambda parameters: torch.optim.AdamW([{"params": list(parameters), "lr": 0.02}], weight_decay=0.1),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, 0.05),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, 0.01, centered=True),
    "LBFGS": lambda parameters: torch.optim.LBFGS(parameters, 0.1, max_iter=2),
}


class Run:
    """A training run from its start."""

    def __init__(self, kind):
        self.model = torch.nn.Sequential(network(), torch.nn.BatchNorm1d(2).double())
        self.optimizer = hvd.DistributedOptimizer(
            OPTIMIZERS[kind](self.model.parameters()), self.model.named_parameters()
        )
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(self.optimizer, 4)
        hvd.broadcast_parameters(self.model.state_dict(), 0)

    def state(self):
        return {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}

    def train(self, data):
        for batch in data:
            self.optimizer.step(closure_of(self.model, self.optimizer, mine(batch)))
            self.schedule.step()
        return self

    def bits(self):
        return [each.detach().clone() for each in self.model.parameters()]


def folder(name):
    path = FOLDER / name
    if hvd.rank() == 0:
        shutil.rmtree(path, ignore_errors=True)
    hvd.barrier()
    return path


@check
def a_run_that_is_resumed_ends_with_the_same_bits():
    data = batches(6)
    for kind in OPTIMIZERS:
        for sharded in (False, True):
            path = folder(f"{kind}.{sharded}")
            run = Run(kind).train(data[:3])
            with CheckpointManager(path, sharded=sharded) as checkpoints:
                checkpoints.save(3, **run.state())
                run.train(data[3:])  # while it is written
            hvd.barrier()
            torch.manual_seed(99)
            again = Run(kind)
            start = CheckpointManager(path, sharded=sharded).restore(**again.state())
            assert start.step == 3
            assert start.model is again.model
            again.train(data[3:])
            assert same_on_all_ranks(again.bits())
            assert all(map(torch.equal, run.bits(), again.bits())), kind
            assert again.schedule.get_last_lr() == run.schedule.get_last_lr()


@check
def tensors_and_what_they_come_in():
    weights = torch.arange(6.0).view(2, 3)
    state = {
        "transposed": weights.t(),
        "bfloat16": weights.bfloat16(),
        "float8": weights.to(torch.float8_e4m3fn),
        "complex": torch.complex(weights, weights),
        "conjugate": torch.complex(weights, weights).conj(),
        "bool": weights > 2,
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 3, dtype=torch.int32),
        "expanded": torch.tensor([1.0]).expand(4),
        "channels last": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        "parameter": torch.nn.Parameter(weights),
        "random": torch.get_rng_state(),
    }
    path = folder("tensors")
    with CheckpointManager(path) as checkpoints:
        checkpoints.save(1, state=state)
        found = checkpoints.restore(state=None).state
    assert list(found) == list(state)
    for name, tensor in state.items():
        expected = hvd.broadcast_object(tensor.detach().resolve_conj().contiguous(), 0)
        assert found[name].dtype == expected.dtype, name
        assert found[name].shape == expected.shape, name
        assert torch.equal(*(each.contiguous().view(-1).view(torch.uint8) for each in (found[name], expected))), name


@check
def tensors_that_share_memory_are_saved_once():
    model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Linear(300, 300))
    model[1].weight = model[0].weight
    path = folder("tied")
    with CheckpointManager(path) as checkpoints:
        checkpoints.save(1, model=model)
    if hvd.rank() == 0:
        assert next(path.glob("*/*")).stat().st_size < 1.2 * 300 * 300 * 4


@check
def what_cannot_be_saved_is_refused():
    if hvd.rank() == 0:
        checkpoints = CheckpointManager(folder_of_one := FOLDER / "refused")
        with raises(UsageError, "x is a tensor that a checkpoint cannot hold, torch.sparse_coo on cpu"):
            checkpoints.save(1, x=torch.eye(3).to_sparse())
        with raises(UsageError, "x.0.weight is a tensor that a checkpoint cannot hold, torch.strided on meta"):
            checkpoints.save(1, x=torch.nn.Sequential(torch.nn.Linear(2, 2, device="meta")))
        assert not folder_of_one.exists()


@check
def a_model_that_does_not_fit_is_refused_by_torch():
    path = folder("other")
    with CheckpointManager(path) as checkpoints:
        checkpoints.save(1, model=torch.nn.Linear(3, 3))
        with raises(RuntimeError, "size mismatch for weight"):
            checkpoints.restore(model=torch.nn.Linear(4, 4))


run_checks()
