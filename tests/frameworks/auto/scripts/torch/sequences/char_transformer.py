"""Train a small character transformer with AdamW, dropout, and a learning rate that warms up and decays."""

import argparse
import math

import torch
from sklearn import datasets
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class CharDataset(Dataset):
    def __init__(self, text, block_size, chars, stride):
        stoi = {ch: i for i, ch in enumerate(chars)}
        self.data = torch.tensor([stoi[ch] for ch in text])
        self.block_size, self.stride = block_size, stride

    def __len__(self):
        return (len(self.data) - self.block_size - 1) // self.stride

    def __getitem__(self, idx):
        chunk = self.data[idx * self.stride : idx * self.stride + self.block_size + 1]
        return chunk[:-1], chunk[1:]


class GPT(nn.Module):
    def __init__(self, vocab_size, block_size, n_embd=32, n_head=4, n_layer=2, dropout=0.05):
        super().__init__()
        self.tok_emb = nn.Embedding(vocab_size, n_embd)
        self.pos_emb = nn.Parameter(torch.zeros(1, block_size, n_embd))
        layer = nn.TransformerEncoderLayer(
            n_embd, n_head, 4 * n_embd, dropout, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, n_layer, enable_nested_tensor=False)
        self.ln_f = nn.LayerNorm(n_embd)
        self.head = nn.Linear(n_embd, vocab_size, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(block_size))

    def forward(self, idx, targets):
        x = self.tok_emb(idx) + self.pos_emb
        logits = self.head(self.ln_f(self.blocks(x, mask=self.mask, is_causal=True)))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def estimate_loss(model, loader):
    model.eval()
    losses = [model(x, y)[1].item() for x, y in loader]
    model.train()
    return sum(losses) / len(losses)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--block-size", type=int, default=32)
    args = parser.parse_args()
    torch.manual_seed(1337)

    text = "".join(load().DESCR for load in (datasets.load_iris, datasets.load_diabetes, datasets.load_breast_cancer))
    chars = sorted(set(text))
    split = len(text) * 9 // 10
    train_loader = DataLoader(CharDataset(text[:split], args.block_size, chars, 7), batch_size=24, shuffle=True)
    val_loader = DataLoader(CharDataset(text[split:], args.block_size, chars, 32), batch_size=8)

    model = GPT(len(chars), args.block_size)
    print(f"number of parameters: {sum(p.numel() for p in model.parameters())}")
    decay = [p for p in model.parameters() if p.dim() >= 2]
    no_decay = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
    total, warmup = args.epochs * len(train_loader), 20
    schedule = lambda it: it / warmup if it < warmup else 0.5 * (1 + math.cos(math.pi * it / total))  # noqa: E731
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    for epoch in range(args.epochs):
        for it, (x, y) in enumerate(train_loader):
            _, loss = model(x, y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            if it % 20 == 0:
                print(f"epoch {epoch} iter {it}: train loss {loss.item():.5f}. lr {scheduler.get_last_lr()[0]:e}")
        print(f"epoch {epoch}: val loss {estimate_loss(model, val_loader):.4f}")
    torch.save(model.state_dict(), "gpt.pt")


if __name__ == "__main__":
    main()
