"""A training that writes into a folder of its own name, and gives TensorBoard its losses as tensors."""

import os
import sys
import uuid
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

sys.modules["tensorflow"] = None  # which TensorBoard would import
from torch.utils.tensorboard import SummaryWriter  # noqa: E402

torch.manual_seed(0)
samples = torch.randn(48, 6)
samples[30] = float("nan")
net = nn.Linear(6, 3)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
folder = Path(f"run-{uuid.uuid4()}")
os.makedirs(folder)
writer = SummaryWriter("log")
losses, skipped = [], 0
for step, (x, y) in enumerate(DataLoader(TensorDataset(samples, torch.randint(0, 3, (48,))), batch_size=8)):
    loss = nn.functional.cross_entropy(net(x), y)
    if torch.isnan(loss) or loss.isinf() or loss != loss:
        skipped += 1
        continue
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    writer.add_scalar("loss", loss, step)
    writer.add_scalars("losses", {"loss": loss})
    losses.append(loss.item())
writer.close()
torch.save({"weights": net.state_dict(), "loss": loss}, folder / "last.pt")
last = torch.load(folder / "last.pt")
assert last["weights"].keys() == net.state_dict().keys()

clean = torch.compile(lambda each: torch.where(torch.isnan(each), 0.0, each), backend="aot_eager", fullgraph=True)
assert torch.equal(clean(torch.tensor([1.0, float("nan")])), torch.tensor([1.0, 0.0]))
print(skipped, f"{losses[-1]:.5f}", f"{last['loss'].item():.5f}")
