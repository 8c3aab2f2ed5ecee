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
    Case("torch/vision/resnet", "BatchNorm, SGD with momentum, label smoothing, `drop_last`"),
    Case(
        "torch/vision/transfer_learning",
        "the tutorial: phases, frozen weights, the best in a temporary folder",
        (r"Best val Loss: ([\d.]+)",),
        warned=r"transfer_learning.py:\d+: running_loss / dataset_sizes\[phase\]",
        tolerance=_EXACT,
        is_uneven=True,
    ),
    Case("torch/vision/triplets", "TripletMarginLoss, samples drawn by the dataset, RMSprop", tolerance=0.03),
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
    Case("torch/vision/tied_autoencoder", "tied weights, noise drawn in the loop, `torch.save(model)`"),
    Case(
        "torch/vision/contrastive", "SimCLR: a loss of the whole batch", refused="samples are compared with each other"
    ),
    Case(
        "torch/sequences/text_classification",
        "EmbeddingBag and a `collate_fn` with offsets, clipping, decisions by accuracy",
        (r"valid loss ([\d.]+)", r"learning rate ([\d.]+)"),
        tolerance=_EXACT,
    ),
    Case(
        "torch/sequences/word_language_model",
        "LSTM with tied weights, clipping, the best model saved and loaded",
        (r"test loss +([\d.]+)",),
        tolerance=_EXACT,
    ),
    Case(
        "torch/sequences/char_transformer", "transformer, AdamW with groups, LambdaLR, dropout", (r"val loss ([\d.]+)",)
    ),
    Case(
        "torch/sequences/lstm_forecast",
        "LSTM, ReduceLROnPlateau, early stopping that keeps the best weights",
        (r"best validation loss ([\d.]+)",),
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
    Case("torch/generative/diffusion", "diffusion: noise and time steps in the loop, AveragedModel"),
    Case("torch/techniques/amp", "autocast to bfloat16, GradScaler, `unscale_` and clipping"),
    Case(
        "torch/techniques/accumulation",
        "gradients of several batches per step, clipping, a progress line",
        (r"test loss:? ([\d.]+)", r"training loss ([\d.]+)"),
        tolerance=_EXACT,
        is_uneven=True,
    ),
    Case(
        "torch/techniques/onecycle_ema",
        "OneCycleLR, AdamW, an own moving average, WeightedRandomSampler",
        (r"test loss of the average ([\d.]+)", r"training loss ([\d.]+)"),
        tolerance=_EXACT,
    ),
    Case(
        "torch/techniques/early_stopping",
        "a learning rate finder, `random_split`, validation in the loop, early stopping",
        (r"test loss ([\d.]+)", r"learning rate ([\d.]+)", r"best at step (\d+)"),
        tolerance=_EXACT,
        is_uneven=True,
    ),
    Case(
        "torch/techniques/compiled",
        "`torch.compile`, schedulers in a sequence, a penalty of the weights",
        (r"test loss ([\d.]+)", r"loss ([\d.]+) lr"),
        tolerance=_EXACT,
    ),
    Case("torch/techniques/sparse_embedding", "sparse gradients: SparseAdam and Adam, samples in dictionaries"),
    Case(
        "torch/techniques/resume",
        "a checkpoint of everything, and a second run that goes on from it",
        (r"test loss ([\d.]+)", r"epoch (\d+): lr"),
        tolerance=_EXACT,
        runs=2,
    ),
    Case(
        "torch/techniques/multitask",
        "a mean and a summed loss, added, under plain SGD",
        (r"test loss ([\d.]+)", r"sizes ([\d.]+)"),
    ),
    Case(
        "torch/techniques/summed_loss",
        "a loss summed over the batch under plain SGD",
        (r"test loss ([\d.]+)", r"training loss ([\d.]+)"),
        tolerance=_EXACT,
        is_uneven=True,
    ),
    Case(
        "torch/techniques/train_metrics",
        "statistics taken from the loader; accuracy and loss while training",
        (r"test loss ([\d.]+)", r"mean of batches ([\d.]+)", r"first feature ([\d.]+)"),
        warned=r"train_metrics.py:\d+: running_loss / len\(train_set\)",
        tolerance=_EXACT,
    ),
    Case("torch/techniques/sloppy_evaluation", "evaluation without `eval()` and `no_grad()`", refused="evaluation"),
    Case(
        "torch/techniques/cross_validation",
        "k-fold with SubsetRandomSampler, a last batch of two, F1 of collected predictions",
        (r"test loss ([\d.]+)", r"F1 ([\d.]+)", r"(\d+) predictions"),
        tolerance=_EXACT,
        is_uneven=True,
    ),
    Case(
        "torch/techniques/optimizers",
        "SGD, Adam, NAdam and Rprop one after the other, worker processes, a CSV file",
        (r"mean test loss ([\d.]+)",),
    ),
    Case(
        "torch/refused/sliced_language_model",
        "PyTorch's word language model: `get_batch`, weights moved by hand",
        refused="no optimizer",
    ),
    Case(
        "torch/refused/time_sequence_prediction",
        "PyTorch's example with L-BFGS on all data",
        refused="LBFGS|closure|DataLoader",
    ),
    Case(
        "torch/refused/regression",
        "PyTorch's regression: random batches, weights moved by hand",
        refused="DataLoader|optimizer",
    ),
    Case("torch/refused/reinforce", "PyTorch's REINFORCE", refused="DataLoader"),
    Case("torch/refused/actor_critic", "PyTorch's actor and critic", refused="DataLoader"),
    Case("torch/refused/stream", "an IterableDataset", refused="IterableDataset"),
    Case("torch/refused/buckets", "a batch sampler of one's own", refused="batch_?sampler|batch sampler"),
    Case("torch/refused/ddp", "DistributedDataParallel", refused="distribut"),
    Case("torch/refused/shared_optimizers", "two optimizers that share parameters", refused="share|optimizers"),
    Case("keras/mnist_convnet", "Keras's first example: arrays, `validation_split`, dropout", tolerance=0.03),
    Case("keras/text_classification", "strings through TextVectorization and tf.data"),
    Case("keras/vae", "an own `train_step`", (r"test loss ([\d.]+)", r"training loss at the end: ([\d.]+)")),
    Case(
        "keras/gan",
        "two optimizers in an own `train_step`",
        (r"discriminator's loss ([\d.]+)", r"mean images ([\d.]+)"),
        tolerance=0.05,
    ),
    Case("keras/distillation", "a `compute_loss` of the script's own with a teacher in it"),
    Case("keras/refused/summed_step", "a `train_step` whose loss is a sum", refused="adds up its rows"),
    Case(
        "keras/timeseries",
        "timeseries_dataset_from_array, early stopping, the best weights",
        (r"validation loss ([\d.]+)",),
    ),
    Case("keras/timeseries_transformer", "attention, `validation_split`, early stopping"),
    Case("keras/denoising_autoencoder", "a convolutional autoencoder that is fitted twice, on noisy data"),
    Case("keras/tf_data_pipeline", "tf.data that repeats, BatchNorm, a schedule, `clipnorm`"),
    Case("keras/callbacks", "the usual callbacks, sample weights, a log in CSV", is_uneven=True),
    Case(
        "keras/multi_input",
        "inputs and outputs in dictionaries; class weights",
        (r"sum of the test losses ([\d.]+)",),
        is_uneven=True,
    ),
    Case("keras/py_dataset", "a PyDataset that shuffles at the end of epochs"),
    Case("keras/jax_backend", "Keras on JAX"),
    Case("keras/torch_backend", "Keras on PyTorch, gradient_accumulation_steps"),
    Case("keras/refused/gradient_tape", "an own loop around GradientTape", refused="training loop of the script's own"),
    Case("keras/refused/jax_loop", "JAX alone", refused="JAX"),
)
