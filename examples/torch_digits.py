"""Handwritten digits on any number of ranks: what a training script needs for distrun, marked 1 to 6.

    python torch_digits.py                  one process, as before
    distrun -np 4 python torch_digits.py    four; with `-H a:2,b:2` on two hosts
    mpirun -np 4 python torch_digits.py     the same, started by MPI

`--check` proves the point: all ranks end with the same bits, and with the weights of one process that saw all the data.
"""

import argparse
import hashlib

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import distrun.torch as distrun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.03, help="for one rank (default: %(default)s)")
    parser.add_argument(
        "--warmup", type=int, default=2, help="epochs until the full learning rate (default: %(default)s)"
    )
    parser.add_argument("--checkpoint", help="file that rank 0 writes at the end, and starts from if it exists")
    parser.add_argument(
        "--check", action="store_true", help="check the result against one process; exit with 1 if wrong"
    )
    args = parser.parse_args()

    distrun.init()  # 1. join the other ranks; "cuda" is this rank's own GPU from here on
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)
    torch.manual_seed(42)
    train_data, test_data = digits()

    # 2. each rank takes another part of the data, and of what is evaluated
    sampler = DistributedSampler(train_data, distrun.size(), distrun.rank(), seed=42)
    loader = DataLoader(train_data, args.batch_size, sampler=sampler)

    model = network().to(device)
    # 3. together the ranks have a larger batch, so they take larger steps, after a warm-up
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * distrun.size(), momentum=0.9)
    if args.checkpoint and distrun.rank() == 0:
        load(args.checkpoint, model, optimizer)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / distrun.size(), total_iters=args.warmup * len(loader))

    # 4. from here on `backward()` averages the gradients over the ranks
    optimizer = distrun.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    # 5. all ranks start from what rank 0 has
    distrun.broadcast_parameters(model.state_dict(), root_rank=0)
    distrun.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            warmup.step()
        last_loss = distrun.allreduce(loss.detach(), name="loss").item()  # the average over the ranks
        accuracy = evaluate(model, test_data, device)
        if distrun.rank() == 0:  # 6. one rank prints and writes
            print(f"epoch {epoch + 1}: last loss {last_loss:.3f}, test accuracy {accuracy:.1%}", flush=True)

    if args.checkpoint and distrun.rank() == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.checkpoint)
    if args.check:
        check("test accuracy is at least 96 %", accuracy >= 0.96)
        check("all ranks have bit-identical weights", len(set(distrun.allgather_object(digest(model)))) == 1)
        check(f"{distrun.size()} ranks equal one process on the combined batch", equals_one_process(train_data, device))


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Return scikit-learn's 1797 images, divided into training and test data in the same way on every rank."""
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(labels))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    return TensorDataset(*data[order[360:]]), TensorDataset(*data[order[:360]])


def network() -> torch.nn.Sequential:
    conv = [
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, padding=1),
        torch.nn.ReLU(),
    ]
    return torch.nn.Sequential(*conv, torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(512, 10))


def evaluate(model: torch.nn.Module, data: TensorDataset, device: torch.device) -> float:
    """Return the accuracy on all of `data`: each rank counts in its part, and the counts are added up."""
    images, labels = data[distrun.rank() :: distrun.size()]
    with torch.no_grad():
        right = (model(images.to(device)).argmax(1) == labels.to(device)).sum()
    return distrun.allreduce(right, op=distrun.Sum, name="right").item() / len(data)


def load(path: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    try:
        state = torch.load(path, map_location="cpu")
    except FileNotFoundError:
        return
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


# The checks -----------------------------------------------------------------------------------------------------------


def equals_one_process(data: TensorDataset, device: torch.device, steps: int = 10, rows: int = 16) -> bool:
    """Train twice from one start, in double precision: by all ranks together, and plainly on the combined batches."""
    together, alone = network().double().to(device), network().double().to(device)
    distrun.broadcast_parameters(together.state_dict(), root_rank=0)
    alone.load_state_dict(together.state_dict())
    ours = distrun.DistributedOptimizer(torch.optim.SGD(together.parameters(), lr=0.05, momentum=0.9))
    plain = torch.optim.SGD(alone.parameters(), lr=0.05, momentum=0.9)
    combined = rows * distrun.size()
    for step in range(steps):
        images, labels = data[torch.arange(step * combined, (step + 1) * combined) % len(data)]
        images, labels = images.double().to(device), labels.to(device)
        mine = slice(distrun.rank(), None, distrun.size())
        for model, optimizer, part in ((together, ours, mine), (alone, plain, slice(None))):
            optimizer.zero_grad()
            cross_entropy(model(images[part]), labels[part]).backward()
            optimizer.step()
    pairs = zip(together.parameters(), alone.parameters(), strict=True)
    return all(torch.allclose(one, other, rtol=0, atol=1e-5) for one, other in pairs)


def digest(model: torch.nn.Module) -> str:
    return hashlib.sha256(
        b"".join(tensor.cpu().numpy().tobytes() for tensor in model.state_dict().values())
    ).hexdigest()


def check(what: str, is_so: bool) -> None:
    everywhere = all(distrun.allgather_object(is_so))
    if distrun.rank() == 0:
        print(f"check: {what} ... {'ok' if everywhere else 'FAILED'}", flush=True)
    if not everywhere:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
