"""Train a small network that transfers a style, with a content and a style loss, as PyTorch's fast neural style."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim import Adam
from torch.utils.data import DataLoader, TensorDataset


class Features(nn.Module):
    """Frozen features of two depths, in place of VGG's."""

    def __init__(self):
        super().__init__()
        self.slice1 = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU())
        self.slice2 = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(6, 12, 3, padding=1), nn.ReLU())
        for param in self.parameters():
            param.requires_grad = False

    def forward(self, x):
        shallow = self.slice1(x)
        return shallow, self.slice2(shallow)


class TransformerNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReflectionPad2d(1),
            nn.Conv2d(1, 8, 3),
            nn.InstanceNorm2d(8, affine=True),
            nn.ReLU(),
            nn.ReflectionPad2d(1),
            nn.Conv2d(8, 1, 3),
        )

    def forward(self, x):
        return x + self.layers(x)


def gram_matrix(y):
    b, ch, h, w = y.size()
    features = y.view(b, ch, w * h)
    return features.bmm(features.transpose(1, 2)) / (ch * h * w)


torch.manual_seed(42)
images = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 16
train_loader = DataLoader(TensorDataset(images[:800]), batch_size=24)
style_image = images[1000:1001].flip(3)
content_weight, style_weight = 1e3, 2e4

vgg = Features()
transformer = TransformerNet()
optimizer = Adam(transformer.parameters(), 5e-3)
mse_loss = torch.nn.MSELoss()
gram_style = [gram_matrix(y) for y in vgg(style_image.repeat(24, 1, 1, 1))]

for e in range(3):
    transformer.train()
    agg_content_loss = 0.0
    agg_style_loss = 0.0
    count = 0
    for batch_id, (x,) in enumerate(train_loader):
        n_batch = len(x)
        count += n_batch
        optimizer.zero_grad()
        y = transformer(x)
        features_y, features_x = vgg(y), vgg(x)
        content_loss = content_weight * mse_loss(features_y[1], features_x[1])
        style_loss = 0.0
        for ft_y, gm_s in zip(features_y, gram_style, strict=False):
            style_loss += mse_loss(gram_matrix(ft_y), gm_s[:n_batch, :, :])
        style_loss *= style_weight
        total_loss = content_loss + style_loss
        total_loss.backward()
        optimizer.step()
        agg_content_loss += content_loss.item()
        agg_style_loss += style_loss.item()
        if (batch_id + 1) % 10 == 0:
            content, style = agg_content_loss / (batch_id + 1), agg_style_loss / (batch_id + 1)
            seen = f"[{count}/{len(train_loader.dataset)}]"
            print(f"Epoch {e + 1}:\t{seen}\tcontent: {content:.6f}\tstyle: {style:.6f}\ttotal: {content + style:.6f}")
transformer.eval()
torch.save(transformer.state_dict(), "style.model")
with torch.no_grad():
    y = transformer(images[800:1000])
    gram = gram_matrix(vgg(y)[1])
    test_loss = content_weight * mse_loss(vgg(y)[1], vgg(images[800:1000])[1]) + style_weight * mse_loss(
        gram, gram_style[1][:1].repeat(200, 1, 1)
    )
print(f"test loss {test_loss.item():.5f}")
