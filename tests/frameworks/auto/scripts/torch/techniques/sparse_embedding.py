"""Factorise a matrix of ratings: SparseAdam for the embeddings, Adam for the dense layers on top."""

import argparse

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset


class Ratings(Dataset):
    """Ratings of users for items, from hidden factors and some noise."""

    def __init__(self, users, items, count, seed):
        factors = torch.Generator().manual_seed(0)
        u, v = torch.randn(users, 4, generator=factors), torch.randn(items, 4, generator=factors)
        generator = torch.Generator().manual_seed(seed)
        self.users = torch.randint(users, (count,), generator=generator)
        self.items = torch.randint(items, (count,), generator=generator)
        clean = (u[self.users] * v[self.items]).sum(1)
        self.ratings = clean + 0.3 * torch.randn(count, generator=generator)

    def __len__(self):
        return len(self.ratings)

    def __getitem__(self, i):
        return {"user": self.users[i], "item": self.items[i], "rating": self.ratings[i]}


class Recommender(nn.Module):
    def __init__(self, users, items, dim=8):
        super().__init__()
        self.user_embedding = nn.Embedding(users, dim, sparse=True)
        self.item_embedding = nn.Embedding(items, dim, sparse=True)
        self.dense = nn.Sequential(nn.Linear(3 * dim, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, user, item):
        u, v = self.user_embedding(user), self.item_embedding(item)
        return self.dense(torch.cat([u, v, u * v], dim=1)).squeeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(0)

    users, items = 80, 60
    train_loader = DataLoader(Ratings(users, items, 6000, seed=1), batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(Ratings(users, items, 1500, seed=2), batch_size=256)
    model = Recommender(users, items)
    embeddings = [*model.user_embedding.parameters(), *model.item_embedding.parameters()]
    sparse_optimizer = optim.SparseAdam(embeddings, lr=1e-2)
    dense_optimizer = optim.Adam(model.dense.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        model.train()
        for batch in train_loader:
            loss = nn.functional.mse_loss(model(batch["user"], batch["item"]), batch["rating"])
            sparse_optimizer.zero_grad()
            dense_optimizer.zero_grad()
            loss.backward()
            sparse_optimizer.step()
            dense_optimizer.step()
        model.eval()
        with torch.no_grad():
            errors = [(model(batch["user"], batch["item"]) - batch["rating"]) ** 2 for batch in test_loader]
        print(f"epoch {epoch}: test loss {torch.cat(errors).mean().item():.4f}")
    torch.save(model.state_dict(), "recommender.pt")


if __name__ == "__main__":
    main()
