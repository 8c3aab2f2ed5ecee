"""Classify short texts with an EmbeddingBag and a collate_fn of one's own, as in PyTorch's tutorial on text."""

import re
import time

import torch
from sklearn import datasets
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.dataset import random_split

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def load_texts(length=8):
    """Return (label, words): passages from the descriptions of scikit-learn's data sets."""
    loaders = [datasets.load_iris, datasets.load_breast_cancer, datasets.load_diabetes, datasets.load_wine]
    samples = []
    for label, load in enumerate(loaders):
        words = re.findall(r"[a-z]+", load().DESCR.lower())
        samples += [(label, words[start : start + length + start % 5]) for start in range(0, len(words) - length, 2)]
    return samples


samples = load_texts()
vocab = {word: number for number, word in enumerate(sorted({word for _, words in samples for word in words}))}


def collate_batch(batch):
    label_list, text_list, offsets = [], [], [0]
    for label, words in batch:
        label_list.append(label)
        processed_text = torch.tensor([vocab[word] for word in words], dtype=torch.int64)
        text_list.append(processed_text)
        offsets.append(processed_text.size(0))
    offsets = torch.tensor(offsets[:-1]).cumsum(dim=0)
    return torch.tensor(label_list).to(device), torch.cat(text_list).to(device), offsets.to(device)


class TextClassificationModel(nn.Module):
    def __init__(self, vocab_size, embed_dim, num_class):
        super().__init__()
        self.embedding = nn.EmbeddingBag(vocab_size, embed_dim, sparse=False)
        self.fc = nn.Linear(embed_dim, num_class)

    def forward(self, text, offsets):
        return self.fc(self.embedding(text, offsets))


def train(dataloader):
    model.train()
    total_acc, total_count = 0, 0
    for idx, (label, text, offsets) in enumerate(dataloader):
        optimizer.zero_grad()
        predicted_label = model(text, offsets)
        loss = criterion(predicted_label, label)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        total_acc += (predicted_label.argmax(1) == label).sum().item()
        total_count += label.size(0)
        if idx % 20 == 0 and idx > 0:
            print(
                f"| epoch {epoch:3d} | {idx:5d}/{len(dataloader):5d} batches | accuracy {total_acc / total_count:8.3f}"
            )
            total_acc, total_count = 0, 0


def evaluate(dataloader):
    model.eval()
    total_acc, total_loss, total_count = 0, 0.0, 0
    with torch.no_grad():
        for label, text, offsets in dataloader:
            predicted_label = model(text, offsets)
            total_loss += criterion(predicted_label, label).item() * label.size(0)
            total_acc += (predicted_label.argmax(1) == label).sum().item()
            total_count += label.size(0)
    return total_acc / total_count, total_loss / total_count


model = TextClassificationModel(len(vocab), 32, 4).to(device)
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=4.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1.0, gamma=0.5)
num_train = int(len(samples) * 0.8)
split_train, split_valid = random_split(samples, [num_train, len(samples) - num_train])
train_dataloader = DataLoader(split_train, batch_size=16, shuffle=True, collate_fn=collate_batch)
valid_dataloader = DataLoader(split_valid, batch_size=16, shuffle=True, collate_fn=collate_batch)
total_accu = None
for epoch in range(1, 7):
    epoch_start_time = time.time()
    train(train_dataloader)
    accu_val, loss_val = evaluate(valid_dataloader)
    if total_accu is not None and total_accu > accu_val:
        scheduler.step()
    else:
        total_accu = accu_val
    print(f"| end of epoch {epoch:3d} | time: {time.time() - epoch_start_time:5.2f}s | valid accuracy {accu_val:8.3f}")
print(f"valid loss {loss_val:.4f}, learning rate {scheduler.get_last_lr()[0]}")
