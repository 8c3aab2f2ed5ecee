"""Digits of a made-up handwriting, learned the way Horovod's users write it."""

import argparse

import horovod.torch as hvd
import torch
import torch.nn as nn
import torch.nn.functional as functional
import torch.optim as optim
import torch.utils.data.distributed

parser = argparse.ArgumentParser(description="PyTorch digits")
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--momentum", type=float, default=0.8)
parser.add_argument("--seed", type=int, default=42)
parser.add_argument("--fp16-allreduce", action="store_true", default=False)
parser.add_argument("--use-sum", action="store_true", default=False)
parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
args = parser.parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, kernel_size=3)
        self.fc1 = nn.Linear(36, 16)
        self.fc2 = nn.Linear(16, 10)

    def forward(self, x):
        x = functional.relu(functional.max_pool2d(self.conv(x), 2))
        x = functional.relu(self.fc1(x.view(-1, 36)))
        return functional.log_softmax(self.fc2(x), dim=1)


def digits(count):
    generator = torch.Generator().manual_seed(1)
    shapes = torch.rand(10, 1, 8, 8, generator=generator)
    labels = torch.randint(0, 10, (count,), generator=generator)
    images = shapes[labels] + 0.1 * torch.randn(count, 1, 8, 8, generator=generator)
    return torch.utils.data.TensorDataset(images, labels)


def metric_average(value, name):
    tensor = torch.tensor(value)
    avg_tensor = hvd.allreduce(tensor, name=name)
    return avg_tensor.item()


hvd.init()
torch.manual_seed(args.seed + hvd.rank())  # the ranks begin differently: the broadcast must mend that
if torch.cuda.is_available():
    torch.cuda.set_device(hvd.local_rank())
torch.set_num_threads(1)

train_dataset, test_dataset = digits(512), digits(128)
train_sampler = torch.utils.data.distributed.DistributedSampler(train_dataset, num_replicas=hvd.size(), rank=hvd.rank())
train_loader = torch.utils.data.DataLoader(train_dataset, batch_size=args.batch_size, sampler=train_sampler)
test_sampler = torch.utils.data.distributed.DistributedSampler(test_dataset, num_replicas=hvd.size(), rank=hvd.rank())
test_loader = torch.utils.data.DataLoader(test_dataset, batch_size=64, sampler=test_sampler)

model = Net()
lr_scaler = hvd.size() if not args.use_sum else 1
if torch.cuda.is_available() and hvd.nccl_built():
    lr_scaler = hvd.local_size()
optimizer = optim.SGD(model.parameters(), lr=args.lr * lr_scaler, momentum=args.momentum)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
optimizer = hvd.DistributedOptimizer(
    optimizer,
    named_parameters=model.named_parameters(),
    compression=compression,
    op=hvd.Sum if args.use_sum else hvd.Average,
    gradient_predivide_factor=args.gradient_predivide_factor,
)


def train(epoch):
    model.train()
    train_sampler.set_epoch(epoch)
    for data, target in train_loader:
        optimizer.zero_grad()
        loss = functional.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()


def test():
    model.eval()
    test_loss = 0.0
    test_accuracy = 0.0
    for data, target in test_loader:
        output = model(data)
        test_loss += functional.nll_loss(output, target, reduction="sum").item()
        pred = output.data.max(1, keepdim=True)[1]
        test_accuracy += pred.eq(target.data.view_as(pred)).float().sum().item()
    test_loss = metric_average(test_loss / len(test_sampler), "avg_loss")
    test_accuracy = metric_average(test_accuracy / len(test_sampler), "avg_accuracy")
    if hvd.rank() == 0:
        print(f"Test set: Average loss: {test_loss:.4f}, Accuracy: {100.0 * test_accuracy:.2f}%")
    return test_loss, test_accuracy


before, _ = test()
for epoch in range(1, args.epochs + 1):
    train(epoch)
after, accuracy = test()
assert after < before / 2, (before, after)
assert accuracy > 0.9, accuracy

weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
everywhere = hvd.allgather(weights.unsqueeze(0), name="weights")
assert everywhere.shape[0] == hvd.size()
assert all(torch.equal(everywhere[0], row) for row in everywhere)
print(f"rank {hvd.rank()} of {hvd.size()} is done")
