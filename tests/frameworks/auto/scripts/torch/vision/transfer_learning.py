"""Transfer learning as in PyTorch's tutorial: phases "train" and "val", the best weights kept in a temporary folder."""

import os
import time
from tempfile import TemporaryDirectory

import torch
import torch.nn as nn
import torch.optim as optim
from sklearn.datasets import load_digits
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def pretrained_model():
    """Stand in for torchvision's weights: features that tell the digits 0 to 4 apart, by plain gradient descent."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
    head = nn.Linear(64, 5)
    known, targets = images[labels < 5], labels[labels < 5]
    weights = [*model.parameters(), *head.parameters()]
    for _ in range(60):
        grads = torch.autograd.grad(nn.functional.cross_entropy(head(model(known)), targets), weights)
        with torch.no_grad():
            for weight, grad in zip(weights, grads, strict=True):
                weight -= 0.5 * grad
    return model


new = labels >= 5
x, y = images[new], labels[new] - 5
image_datasets = {"train": TensorDataset(x[:600], y[:600]), "val": TensorDataset(x[600:], y[600:])}
dataloaders = {name: DataLoader(image_datasets[name], batch_size=32, shuffle=True) for name in ["train", "val"]}
dataset_sizes = {name: len(image_datasets[name]) for name in ["train", "val"]}


def train_model(model, criterion, optimizer, scheduler, num_epochs=25):
    since = time.time()
    with TemporaryDirectory() as tempdir:
        best_model_params_path = os.path.join(tempdir, "best_model_params.pt")
        torch.save(model.state_dict(), best_model_params_path)
        best_loss = float("inf")

        for epoch in range(num_epochs):
            print(f"Epoch {epoch}/{num_epochs - 1}")
            print("-" * 10)
            for phase in ["train", "val"]:
                if phase == "train":
                    model.train()
                else:
                    model.eval()
                running_loss = 0.0
                running_corrects = 0
                for inputs, targets in dataloaders[phase]:
                    inputs = inputs.to(device)
                    targets = targets.to(device)
                    optimizer.zero_grad()
                    with torch.set_grad_enabled(phase == "train"):
                        outputs = model(inputs)
                        _, preds = torch.max(outputs, 1)
                        loss = criterion(outputs, targets)
                        if phase == "train":
                            loss.backward()
                            optimizer.step()
                    running_loss += loss.item() * inputs.size(0)
                    running_corrects += torch.sum(preds == targets.data)
                if phase == "train":
                    scheduler.step()
                epoch_loss = running_loss / dataset_sizes[phase]
                epoch_acc = running_corrects.double() / dataset_sizes[phase]
                print(f"{phase} Loss: {epoch_loss:.4f} Acc: {epoch_acc:.4f}")
                if phase == "val" and epoch_loss < best_loss:
                    best_loss = epoch_loss
                    torch.save(model.state_dict(), best_model_params_path)

        time_elapsed = time.time() - since
        print(f"Training complete in {time_elapsed // 60:.0f}m {time_elapsed % 60:.0f}s")
        print(f"Best val Loss: {best_loss:4f}")
        model.load_state_dict(torch.load(best_model_params_path, weights_only=True))
    return model


features = pretrained_model()
for param in features.parameters():
    param.requires_grad = False
model_conv = nn.Sequential(features, nn.Linear(64, 5)).to(device)
optimizer_conv = optim.SGD(model_conv[1].parameters(), lr=0.05, momentum=0.9)
exp_lr_scheduler = lr_scheduler.StepLR(optimizer_conv, step_size=7, gamma=0.1)
model_conv = train_model(model_conv, nn.CrossEntropyLoss(), optimizer_conv, exp_lr_scheduler, num_epochs=10)
torch.save(model_conv, "transfer.pt")
