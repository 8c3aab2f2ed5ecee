"""Training with warm-up, accumulation, checkpoints and resuming, the way Horovod's users write it for ImageNet."""

import argparse
import os

import horovod.torch as hvd
import torch
import torch.nn.functional as functional
import torch.optim as optim
import torch.utils.data.distributed

parser = argparse.ArgumentParser(description="PyTorch ImageNet-like Example")
parser.add_argument("--checkpoint-format", default="./checkpoint-{epoch}.pth.tar")
parser.add_argument("--batches-per-allreduce", type=int, default=2)
parser.add_argument("--gradient-predivide-factor", type=float, default=2.0)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--base-lr", type=float, default=0.01)
parser.add_argument("--warmup-epochs", type=float, default=2)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--wd", type=float, default=0.00005)
parser.add_argument("--max-norm", type=float, default=10.0)
args = parser.parse_args()

allreduce_batch_size = args.batch_size * args.batches_per_allreduce
hvd.init()
torch.manual_seed(42)
torch.set_num_threads(1)

resume_from_epoch = 0
for try_epoch in range(args.epochs, 0, -1):
    if os.path.exists(args.checkpoint_format.format(epoch=try_epoch)):
        resume_from_epoch = try_epoch
        break
resume_from_epoch = hvd.broadcast(torch.tensor(resume_from_epoch), root_rank=0, name="resume_from_epoch").item()

inputs = torch.randn(256, 12)
labels = (inputs @ torch.randn(12, 5)).argmax(1)
train_dataset = torch.utils.data.TensorDataset(inputs, labels)
train_sampler = torch.utils.data.distributed.DistributedSampler(train_dataset, num_replicas=hvd.size(), rank=hvd.rank())
train_loader = torch.utils.data.DataLoader(train_dataset, batch_size=allreduce_batch_size, sampler=train_sampler)

torch.manual_seed(hvd.rank())
model = torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.BatchNorm1d(24), torch.nn.ReLU(), torch.nn.Linear(24, 5))
lr_scaler = args.batches_per_allreduce * hvd.size()
optimizer = optim.SGD(model.parameters(), lr=args.base_lr * lr_scaler, momentum=args.momentum, weight_decay=args.wd)
optimizer = hvd.DistributedOptimizer(
    optimizer,
    named_parameters=model.named_parameters(),
    compression=hvd.Compression.none,
    backward_passes_per_step=args.batches_per_allreduce,
    op=hvd.Average,
    gradient_predivide_factor=args.gradient_predivide_factor,
)
if resume_from_epoch > 0 and hvd.rank() == 0:
    checkpoint = torch.load(args.checkpoint_format.format(epoch=resume_from_epoch))
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)


class Metric:
    def __init__(self, name):
        self.name = name
        self.sum = torch.tensor(0.0)
        self.n = torch.tensor(0.0)

    def update(self, val):
        self.sum += hvd.allreduce(val.detach().cpu(), name=self.name)
        self.n += 1

    @property
    def avg(self):
        return self.sum / self.n


def adjust_learning_rate(epoch, batch_idx):
    if epoch < args.warmup_epochs:
        epoch += float(batch_idx + 1) / len(train_loader)
        lr_adj = 1.0 / hvd.size() * (epoch * (hvd.size() - 1) / args.warmup_epochs + 1)
    elif epoch < 30:
        lr_adj = 1.0
    else:
        lr_adj = 1e-1
    for param_group in optimizer.param_groups:
        param_group["lr"] = args.base_lr * hvd.size() * args.batches_per_allreduce * lr_adj


def train(epoch):
    model.train()
    train_sampler.set_epoch(epoch)
    train_loss = Metric("train_loss")
    for batch_idx, (data, target) in enumerate(train_loader):
        adjust_learning_rate(epoch, batch_idx)
        optimizer.zero_grad()
        for i in range(0, len(data), args.batch_size):
            data_batch = data[i : i + args.batch_size]
            target_batch = target[i : i + args.batch_size]
            loss = functional.cross_entropy(model(data_batch), target_batch)
            train_loss.update(loss)
            loss.div_(float(len(data)) / args.batch_size)
            loss.backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)
        with optimizer.skip_synchronize():
            optimizer.step()
    return train_loss.avg.item()


def save_checkpoint(epoch):
    if hvd.rank() == 0:
        filepath = args.checkpoint_format.format(epoch=epoch + 1)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, filepath)


losses = []
for epoch in range(resume_from_epoch, args.epochs):
    losses.append(train(epoch))
    save_checkpoint(epoch)
hvd.barrier()
total = sum(parameter.double().sum().item() for parameter in model.parameters())
if hvd.rank() == 0:
    print(f"epochs {resume_from_epoch}-{args.epochs} loss {losses[-1]:.6f} weights {total:.9f}")
