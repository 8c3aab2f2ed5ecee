"""Handwritten digits on a Ray cluster, twice: on workers that stay up between calls, and by Ray Train.

    python ray_digits.py --workers 2             on this machine, or on the cluster that RAY_ADDRESS names
    python ray_digits.py --workers 2 --gpus 1    with a GPU for each worker

Needs `pip install '.[ray]' 'ray[data,train]' torch scikit-learn`, in a checkout.
"""

import argparse
import tempfile

import ray
import ray.train


def train(epochs, lr, report=None):
    """Train on this rank's share of the digits; the ranks end with the same weights."""
    import torch
    from sklearn.datasets import load_digits
    from torch.nn.functional import cross_entropy

    import distrun.torch as distrun
    from distrun.data import shard

    distrun.init()  # 1. join the other ranks; in later calls the world is there already
    torch.manual_seed(42)
    images, labels = load_digits(return_X_y=True)
    data = torch.utils.data.TensorDataset(torch.tensor(images).float() / 16, torch.tensor(labels))
    batches = shard(data, 32, shuffle=True, seed=1)  # 2. each rank takes another part of the data

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).to(device)
    # 3. gradients are averaged over the ranks, which start from what rank 0 has
    optimizer = torch.optim.SGD(model.parameters(), lr=lr * distrun.size(), momentum=0.9)
    optimizer = distrun.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    distrun.broadcast_parameters(model.state_dict(), root_rank=0)
    for epoch in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            loss = cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
        mean = distrun.allreduce(loss.detach(), name="loss").item()
        if distrun.rank() == 0:
            print(f"epoch {epoch + 1} on {distrun.size()} ranks: last loss {mean:.3f}", flush=True)
        if report is not None:
            report(mean, model)
    return {"loss": mean, "sum": sum(parameter.sum().item() for parameter in model.parameters())}


def train_with_ray(config):
    """Do the same as a training function of Ray Train, with a checkpoint of rank 0's model after each epoch."""
    import torch

    def report(loss, model):
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if ray.train.get_context().get_world_rank() == 0:
                torch.save(model.state_dict(), f"{folder}/model.pt")
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"loss": loss}, checkpoint=checkpoint)

    train(config["epochs"], config["lr"], report)


def main():
    """Train twice."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--gpus", type=int, default=0, help="for each worker (default: none)")
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    ray.init()

    from distrun.ray import Executor, Trainer

    with Executor(num_workers=args.workers, gpus_per_worker=args.gpus) as executor:
        for lr in (0.01, 0.03):  # the workers and their world stay up from call to call
            results = executor.run(train, (args.epochs, lr))
            assert len({result["sum"] for result in results}) == 1, "the ranks differ"
            print(f"rate {lr}: loss {results[0]['loss']:.3f}, the same weights on {len(results)} ranks")

    trainer = Trainer(
        train_with_ray,
        train_loop_config={"epochs": args.epochs, "lr": 0.03},
        scaling_config=ray.train.ScalingConfig(num_workers=args.workers, use_gpu=args.gpus > 0),
    )
    result = trainer.fit()
    print(f"by Ray Train: loss {result.metrics['loss']:.3f}, checkpoint {result.checkpoint.path}")


if __name__ == "__main__":
    main()
