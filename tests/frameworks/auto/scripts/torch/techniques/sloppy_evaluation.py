"""A first script: no functions, no model.eval(), no torch.no_grad(), and the test set is evaluated after each epoch."""

import torch
from sklearn.datasets import load_iris
from torch.utils.data import DataLoader, random_split

torch.manual_seed(7)
iris = load_iris()
data = list(zip(torch.tensor(iris.data, dtype=torch.float32), torch.tensor(iris.target), strict=True))
train_data, test_data = random_split(data, [110, 40])
train_loader = DataLoader(train_data, batch_size=16, shuffle=True)
test_loader = DataLoader(test_data, batch_size=16)

model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
loss_fn = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(10):
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
    correct, test_loss = 0, 0
    for x, y in test_loader:
        output = model(x)
        test_loss += loss_fn(output, y).item() * len(x)
        correct += (output.argmax(dim=1) == y).sum().item()
    print(f"epoch {epoch}: test loss {test_loss / len(test_data):.4f}, accuracy {correct / len(test_data):.3f}")
torch.save(model, "iris.pt")
