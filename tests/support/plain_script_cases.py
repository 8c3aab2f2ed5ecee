"""The plain training scripts of tests/frameworks/auto/scripts, and what `distrun --auto` should make of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """A script, and what is expected of it."""

    script: str
    """The path below the folder of scripts, without `.py`."""
    shows: str
    """The feature for which it was chosen, for the table in the docs."""
    figures: tuple[str, ...] = (r"test loss:? ([\d.]+)",)
    """Patterns of the figures to compare; of each, what matches last counts."""
    refused: str | None = None
    """Words of the reason why it is refused; None if it is to train."""
    warned: str = ""
    """The pattern of a warning about numbers that it prints."""
    tolerance: float = 0.01
    """How far the figures may be from those of a single process, relative to them."""
    arguments: tuple[str, ...] = ()
    runs: int = 1
    """How often the script runs, one time after the other, in the same folder."""
    is_in_gate: bool = False
    """Whether it is in the gate of the tests."""
    is_uneven: bool = False
    """Whether it is also tried with three ranks, among which its batches do not divide evenly."""


_EXACT = 1e-3  # the same batches of the same samples: only the order of additions differs

CASES: tuple[Case, ...] = (
    Case(
        "torch/vision/mnist",
        "PyTorch's MNIST example: dropout, StepLR, `test()` under `no_grad`",
        (r"Average loss: ([\d.]+)",),
        tolerance=0.06,  # its dropout draws other numbers on each rank
        warned=r"mnist.py:\d+: batch_idx \* len\(data\)",
        arguments=("--save-model",),
        is_in_gate=True,
    ),
    Case(
        "torch/vision/transfer_learning",
        "the tutorial: phases, frozen weights, the best in a temporary folder",
        (r"Best val Loss: ([\d.]+)",),
        warned=r"transfer_learning.py:\d+: running_loss / dataset_sizes\[phase\]",
        tolerance=_EXACT,
        is_uneven=True,
    ),
    Case(
        "torch/vision/siamese",
        "PyTorch's siamese network: pairs drawn by the dataset, Adadelta",
        (r"Average loss: ([\d.]+)",),
        tolerance=0.05,
    ),
    Case(
        "torch/vision/neural_style",
        "PyTorch's fast neural style: two losses, frozen features, InstanceNorm",
        (r"test loss ([\d.]+)", r"total: ([\d.]+)"),
        warned=r"neural_style.py:\d+: count is printed",
        tolerance=_EXACT,
    ),
    Case(
        "torch/vision/forward_forward",
        "PyTorch's forward-forward: an optimizer in each layer",
        (r"test loss ([\d.]+)", r"loss ([\d.]+)"),
        tolerance=_EXACT,
    ),
    Case(
        "torch/sequences/word_language_model",
        "LSTM with tied weights, clipping, the best model saved and loaded",
        (r"test loss +([\d.]+)",),
        tolerance=_EXACT,
    ),
    Case(
        "torch/generative/vae",
        "PyTorch's VAE: summed BCE and KLD",
        (r"Test set loss: ([\d.]+)",),
        warned=r"vae.py:\d+: loss.item\(\) / len\(data\)",
    ),
    Case(
        "torch/generative/dcgan",
        "GAN: two optimizers, BatchNorm, several backward passes",
        (r"mean Loss_D ([\d.]+)",),
        tolerance=0.03,
    ),
    Case(
        "torch/techniques/resume",
        "a checkpoint of everything, and a second run that goes on from it",
        (r"test loss ([\d.]+)", r"epoch (\d+): lr"),
        tolerance=_EXACT,
        runs=2,
    ),
    Case("torch/refused/reinforce", "PyTorch's REINFORCE", refused="DataLoader"),
    Case("torch/refused/ddp", "DistributedDataParallel", refused="distribut"),
    Case("keras/mnist_convnet", "Keras's first example: arrays, `validation_split`, dropout", tolerance=0.03),
    Case("keras/text_classification", "strings through TextVectorization and tf.data"),
    Case("keras/vae", "an own `train_step`", (r"test loss ([\d.]+)", r"training loss at the end: ([\d.]+)")),
    Case(
        "keras/gan",
        "two optimizers in an own `train_step`",
        (r"discriminator's loss ([\d.]+)", r"mean images ([\d.]+)"),
        tolerance=0.05,
    ),
    Case("keras/jax_backend", "Keras on JAX"),
    Case("keras/torch_backend", "Keras on PyTorch, gradient_accumulation_steps"),
    Case("keras/refused/gradient_tape", "an own loop around GradientTape", refused="training loop of the script's own"),
    Case("keras/refused/jax_loop", "JAX alone", refused="JAX"),
)
