"""DistrunStrategy: training by Lightning on all ranks, compared with plain torch in one process on the same batches.

strategy.py PACKAGE FOLDER      PACKAGE: lightning or pytorch_lightning; FOLDER: where rank 0 writes
"""

from __future__ import annotations

import importlib
import logging
import sys
import warnings
from pathlib import Path

import torch
from checking import check, close, loss_of, network, parameters, run_checks, same_on_all_ranks
from expecting import raises
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torchmetrics import MeanMetric

import distrun.torch as dt
from distrun.errors import UsageError

warnings.filterwarnings("ignore")
PACKAGE, FOLDER = sys.argv[1:3]
pl = importlib.import_module("lightning.pytorch" if PACKAGE == "lightning" else PACKAGE)
DistrunStrategy = importlib.import_module(f"distrun.{PACKAGE}").DistrunStrategy
for name in ("lightning.pytorch", "pytorch_lightning"):
    logging.getLogger(name).setLevel(logging.ERROR)

dt.init()
RANK, SIZE = dt.rank(), dt.size()
ROWS, EPOCHS = 4, 2  # of a rank in a batch
_random = torch.Generator().manual_seed(0)
DATA = TensorDataset(
    torch.randn(48, 6, generator=_random, dtype=torch.float64),
    torch.randn(48, 2, generator=_random, dtype=torch.float64),
)


class Module(pl.LightningModule):
    """Trains the small model by an optimizer that `make` makes. Only rank 0 has the right weights at the start."""

    def __init__(self, make=lambda p: SGD(p, 0.1, momentum=0.9)):
        super().__init__()
        self.network, self.make, self.losses = network(), make, MeanMetric()
        with torch.no_grad():
            self.network[0].weight.add_(RANK)

    def training_step(self, batch, _):
        loss = loss_of(self.network, batch)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        self.losses(loss)
        self.log("metric", self.losses, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, _):
        self.log("held_out", loss_of(self.network, batch), sync_dist=True)

    def configure_optimizers(self):
        optimizer = self.make(self.network.parameters())
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def loader():
    return DataLoader(DATA, batch_size=ROWS)


def loader_of_one_process(epoch):
    """The batches of all ranks together, in the order in which Lightning shuffles them."""
    sampler = DistributedSampler(DATA, 1, 0)
    sampler.set_epoch(epoch)
    return DataLoader(DATA, batch_size=ROWS * SIZE, sampler=sampler)


def trainer(strategy=None, **options):
    options = {"max_epochs": EPOCHS, "enable_checkpointing": False, **options}
    return pl.Trainer(
        accelerator="cpu", strategy=strategy or DistrunStrategy(), logger=False, default_root_dir=FOLDER,
        enable_progress_bar=False, enable_model_summary=False, **options,
    )  # fmt: skip


def trained(module, **options):
    """Train by Lightning on all ranks, which hold the same bits then; return the parameters."""
    trainer(**options).fit(module, loader())
    assert same_on_all_ranks(parameters(module))
    return parameters(module)


def trained_alone(make, passes=1, clip=None, factor=1):
    """Train by plain torch in one process; return the parameters, and the mean loss in the last epoch."""
    model = network()
    optimizer = make(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for epoch in range(EPOCHS):
        losses = []
        given = list(loader_of_one_process(epoch))
        for first in range(0, len(given), passes):

            def closure(batches=given[first : first + passes], losses=losses):
                optimizer.zero_grad()
                for batch in batches:
                    loss = loss_of(model, batch)
                    losses.append(loss.detach())
                    (loss * factor / passes).backward()
                if clip is not None:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
                return loss

            optimizer.step(closure)
        scheduler.step()
    return parameters(model), torch.stack(losses).mean()


@check
def any_optimizer_trains_as_in_one_process():
    for make in (
        lambda p: SGD(p, 0.1, momentum=0.9),
        lambda p: torch.optim.AdamW(p, 0.05),
        lambda p: torch.optim.LBFGS(p, 0.1, max_iter=3),
    ):
        assert close(trained(Module(make)), trained_alone(make)[0], 1e-5)


@check
def gradients_are_accumulated_and_clipped():
    def make(parameters):
        return SGD(parameters, 0.1)

    summing = DistrunStrategy(op=dt.Sum)  # which refuses to reduce twice before a step
    accumulated = trained(Module(make), strategy=summing, accumulate_grad_batches=2)
    assert close(accumulated, trained_alone(make, passes=2, factor=SIZE)[0])
    clipped = trained_alone(make, clip=0.05)[0]
    assert not close(clipped, trained_alone(make)[0], 1e-3)
    assert close(trained(Module(make), gradient_clip_val=0.05), clipped)


@check
def metrics_are_those_of_all_ranks():
    module = Module()
    one = trainer()
    one.fit(module, loader(), loader())
    expected = trained_alone(module.make)[1]
    assert close([one.callback_metrics["loss"], one.callback_metrics["metric"].double()], [expected, expected])
    whole = loss_of(module.network, DATA.tensors).detach()
    assert close([one.callback_metrics["held_out"]], [whole])
    assert (one.world_size, one.global_rank, one.local_rank) == (SIZE, RANK, dt.local_rank())
    assert (one.num_devices, one.num_nodes) == (dt.local_size(), dt.cross_size())
    gathered = one.strategy.all_gather(torch.tensor([RANK]))
    assert gathered.flatten().tolist() == list(range(SIZE))
    assert one.strategy.broadcast(f"from {RANK}") == "from 0"
    assert one.strategy.reduce_boolean_decision(RANK == 0, all=False)
    assert one.strategy.reduce_boolean_decision(RANK == 0) is (SIZE == 1)


class Manual(Module):
    """Two networks and two optimizers, by manual optimization: the second judges what the first makes."""

    def __init__(self, **options):
        super().__init__(**options)
        self.automatic_optimization = False
        self.judge = judge()

    def training_step(self, batch, _):
        first, second = self.optimizers()
        for optimizer, loss_function in ((first, self.deceive), (second, self.tell_apart)):
            self.toggle_optimizer(optimizer)
            optimizer.zero_grad()
            self.manual_backward(loss_function(batch))
            self.clip_gradients(optimizer, 0.1, "norm")
            optimizer.step()
            self.untoggle_optimizer(optimizer)

    def deceive(self, batch):
        return (self.judge(self.network(batch[0])) - 1).square().mean()

    def tell_apart(self, batch):
        return (self.judge(self.network(batch[0]).detach())).square().mean() - self.judge(batch[1]).mean()

    def configure_optimizers(self):
        return SGD(self.network.parameters(), 0.1), torch.optim.Adam(self.judge.parameters(), 0.02)


def judge():
    torch.manual_seed(9)
    return torch.nn.Linear(2, 1).double()


@check
def several_optimizers_are_stepped_by_hand():
    found = trained(Manual())
    alone = Manual()
    alone.network = network()
    optimizers = alone.configure_optimizers()
    for epoch in range(EPOCHS):
        for batch in loader_of_one_process(epoch):
            for optimizer, loss_function, module in (
                (optimizers[0], alone.deceive, alone.network),
                (optimizers[1], alone.tell_apart, alone.judge),
            ):
                optimizer.zero_grad()
                loss_function(batch).backward()
                torch.nn.utils.clip_grad_norm_(module.parameters(), 0.1)
                optimizer.step()
    assert close(found, parameters(alone))


class Summed(Module):
    """One optimizer and its scheduler, stepped by hand."""

    automatic_optimization = False

    def training_step(self, batch, _):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss_of(self.network, batch))
        optimizer.step()
        if self.trainer.is_last_batch:
            self.lr_schedulers().step()


@check
def options_of_the_optimizer_are_the_strategys():
    def make(parameters):
        return SGD(parameters, 0.02)

    summed = trained(Summed(make), strategy=DistrunStrategy(op=dt.Sum))
    assert close(summed, trained_alone(make, factor=SIZE)[0])  # reduced once, not by step() again
    assert close(trained(Module(make), strategy=DistrunStrategy(compression=dt.Compression.bf16, groups=2)),
                 trained_alone(make)[0], 1e-2)  # fmt: skip


@check
def rank_0_writes_checkpoints_and_training_goes_on_from_them():
    folder = Path(FOLDER) / f"checkpoints-{SIZE}"
    saving = pl.callbacks.ModelCheckpoint(folder, "{epoch}", save_top_k=-1, save_last=True)
    whole = trained(Module(), callbacks=[saving], enable_checkpointing=True)
    dt.barrier()
    assert sorted(file.name for file in folder.iterdir()) == ["epoch=0.ckpt", "epoch=1.ckpt", "last.ckpt"]
    went_on = Module(lambda p: SGD(p, 3.0, momentum=0.9))  # the checkpoint's learning rate counts
    trainer().fit(went_on, loader(), ckpt_path=folder / "epoch=0.ckpt")
    assert close(parameters(went_on), whole, 1e-12)
    state = torch.load(folder / "last.ckpt", weights_only=False)
    SGD(network().parameters(), 0.1).load_state_dict(state["optimizer_states"][0])  # a plain one takes it
    dt.barrier()


@check
def without_training_the_weights_are_those_of_rank_0_too():
    (found,) = trainer().validate(Module(), loader(), verbose=False)
    assert close([torch.tensor(found["held_out"])], [loss_of(network(), DATA.tensors).detach().float()], 1e-5)


@check
def after_training_a_rank_may_use_the_module_alone_and_train_again():
    module = Module()
    optimizer = SGD(module.network.parameters(), 0.1, momentum=0.9)
    module.make = lambda _: optimizer
    one = trainer()
    one.fit(module, loader())
    if RANK == 0:
        loss_of(module.network, DATA[:4]).backward()
    trainer().fit(module, loader())  # with the same optimizer
    assert same_on_all_ranks(parameters(module))


@check
def what_cannot_be_right_is_refused():
    class Skipping(Module):
        def training_step(self, batch, _):
            return None

    if SIZE > 1:
        with raises(UsageError, f"training_step returned None on rank {RANK}"):
            trainer().fit(Skipping(), loader())
    with raises(UsageError, "Trainer(devices=7, num_nodes=1), but", f"{dt.local_size()} of the {SIZE} ranks: leave"):
        trainer(devices=7)
    with raises(UsageError, "num_nodes=5)"):
        trainer(num_nodes=5)
    with raises(TypeError, "find_unused_parameters"):
        DistrunStrategy(find_unused_parameters=True)


run_checks()
torch.distributed.destroy_process_group()
