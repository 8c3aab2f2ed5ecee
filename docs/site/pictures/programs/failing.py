"""The job that fails in docs/picture.svg: each rank learns digits from every other file, and one file is missing."""

import numpy as np

import distrun

FILES = 12


def gradient_of(weights, images, labels):
    """The gradient of softmax regression, and the loss."""
    scores = images @ weights
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    loss = -np.log(chances[range(len(labels)), labels]).mean()
    chances[range(len(labels)), labels] -= 1
    return images.T @ chances / len(labels), loss


distrun.init()
weights = np.zeros((64, 10))
for number in range(distrun.rank(), FILES, distrun.size()):
    with open(f"digits/{number}.npz", "rb") as file:
        images, labels = np.load(file).values()
    for _ in range(50):
        gradient, loss = gradient_of(weights, images, labels)
        weights -= 0.5 * distrun.allreduce(gradient, name="gradient")
    if distrun.rank() == 0:
        print(f"files {number} and {number + 1} of {FILES}: loss {loss:.3f}", flush=True)
