"""Handwritten digits on ranks that may come and go: what examples/torch_digits.py needs to go on, marked 1 to 4.

    distrun -np 2 --elastic python torch_digits_elastic.py             a rank that dies is replaced, and nothing is lost
    distrun --min-np 1 --max-np 4 --hosts-from ./hosts python ...      or fewer ranks go on, and more when hosts come

`--kill 40` shows it: rank 1 kills itself in the middle of step 40. `--check` proves that every sample of every epoch
was used once, and that all ranks end with the same bits.
"""

import argparse
import hashlib
import os
import signal

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import distrun.torch as distrun
from distrun.data import shard


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.03, help="for one rank (default: %(default)s)")
    parser.add_argument("--kill", type=int, help="step in which rank 1 of the first generation kills itself")
    parser.add_argument("--check", action="store_true", help="check the result; exit with 1 if wrong")
    args = parser.parse_args()

    distrun.init()  # a rank that comes later waits here until it is given a place
    torch.set_num_threads(1)
    torch.manual_seed(42)
    images, labels, test_images, test_labels = digits()

    # 1. data that are dealt out again when ranks come or go: the rest of an epoch, to the ranks that there are
    batches = shard((images, labels, torch.arange(len(labels))), args.batch_size, shuffle=True, seed=42, pad=False)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * distrun.size(), momentum=0.9)
    optimizer = distrun.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    # 2. the training, as a function that is called again whenever the ranks have changed
    @distrun.elastic.run
    def train(state: distrun.elastic.TorchState) -> None:
        for epoch in range(batches.position.next_epoch, args.epochs):
            for inputs, targets, numbers in batches:
                # Only for the check. What ranks do together belongs before `step`: then all know that it was made.
                numbers = distrun.allgather(numbers, name="numbers")
                optimizer.zero_grad()
                loss = cross_entropy(model(inputs), targets)
                if state.step == args.kill and distrun.rank() == 1 and not state.resets:
                    os.kill(os.getpid(), signal.SIGKILL)
                loss.backward()  # if a rank is gone, an error leads out of the function, and into it again
                optimizer.step()
                state.step += 1
                state.used[numbers] += 1
                state.advance()  # 3. a step is done: whoever dies now, it is not lost
            if distrun.rank() == 0:
                print(f"epoch {epoch + 1}: last loss {loss.item():.3f}, ranks: {distrun.size()}", flush=True)

    # 4. what there is to go on from: ranks that come later get it from those that were there
    state = distrun.elastic.TorchState(
        model, optimizer, batches=batches, step=0, resets=0, used=torch.zeros(len(labels), dtype=torch.int64)
    )

    def adjust() -> None:
        """Follow the number of ranks; called on those that were there before."""
        state.resets += 1
        for group in optimizer.param_groups:
            group["lr"] = args.lr * distrun.size()

    state.register_reset_callbacks([adjust])
    train(state)

    with torch.no_grad():
        accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
    if distrun.rank() == 0:
        print(f"test accuracy {accuracy:.1%} after {state.step} steps and {state.resets} changes of ranks", flush=True)
    if args.check:
        check("test accuracy is at least 90 %", accuracy >= 0.9)
        check("all ranks have bit-identical weights", len(set(distrun.allgather_object(digest(model)))) == 1)
        check(f"every sample was used in each of {args.epochs} epochs", bool((state.used == args.epochs).all()))
        check("ranks have come or gone", args.kill is None or state.resets > 0)


def digits() -> list[torch.Tensor]:
    """Return scikit-learn's 1797 images, divided into training and test data in the same way on every rank."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    inputs = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)[order]
    targets = torch.tensor(labels)[order]
    return [inputs[360:], targets[360:], inputs[:360], targets[:360]]


def network() -> torch.nn.Sequential:
    conv = [torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    return torch.nn.Sequential(*conv, torch.nn.Flatten(), torch.nn.Linear(256, 10))


def digest(model: torch.nn.Module) -> str:
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())).hexdigest()


def check(what: str, is_so: bool) -> None:
    everywhere = all(distrun.allgather_object(is_so))
    if distrun.rank() == 0:
        print(f"check: {what} ... {'ok' if everywhere else 'FAILED'}", flush=True)
    if not everywhere:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
