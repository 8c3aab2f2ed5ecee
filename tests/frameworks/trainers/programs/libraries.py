"""Trains a small model by Lightning, accelerate or transformers, and prints the losses and weights of this rank.

libraries.py LIBRARY FOLDER [BACKEND]      BACKEND: what Lightning is asked for; the others choose gloo themselves
"""

from __future__ import annotations

import json
import os
import sys
import warnings

import torch
from torch import distributed as dist
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
LIBRARY, FOLDER = sys.argv[1:3]
ASKED = sys.argv[3] if len(sys.argv) > 3 else None


def data():
    random = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(64, 8, generator=random), torch.randint(0, 3, (64,), generator=random))


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))


def by_lightning():
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network, self.losses = network(), []

        def training_step(self, batch, _):
            loss = torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])
            self.log("mean", loss, sync_dist=True, on_epoch=True)
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy=DDPStrategy(process_group_backend=ASKED),
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(data(), batch_size=8, shuffle=True))
    return [*module.losses, trainer.callback_metrics["mean_epoch"].item()], module.network


def by_accelerate():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data(), batch_size=8))
    losses = []
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses += accelerator.gather(loss.detach().reshape(1)).tolist()
    return losses, accelerator.unwrap_model(model)


def by_transformers():
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=3
    )
    model = BertForSequenceClassification(config)
    tokens = torch.randint(0, 32, (32, 6), generator=torch.Generator().manual_seed(0))
    examples = [{"input_ids": row, "labels": row[0] % 3} for row in tokens]
    arguments = TrainingArguments(
        FOLDER, num_train_epochs=1, per_device_train_batch_size=4, use_cpu=True, report_to=[], disable_tqdm=True,
        logging_steps=1, save_strategy="no", ddp_backend=ASKED,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=examples, eval_dataset=examples)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return [*losses, trainer.evaluate()["eval_loss"]], model


losses, model = {"lightning": by_lightning, "accelerate": by_accelerate, "transformers": by_transformers}[LIBRARY]()
weights = torch.cat([value.detach().flatten() for value in model.parameters()])
found = {"backend": dist.get_backend(), "rank": dist.get_rank(), "losses": losses, "sum": weights.double().sum().item()}
os.write(1, f"RESULT {json.dumps(found)}\n".encode())
dist.barrier()
os._exit(0)  # gloo may abort at the interpreter's end
