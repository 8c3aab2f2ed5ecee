"""Dividing data among the ranks, whatever kind of data."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from distrun.data import structures
from distrun.data.plan import Division, Plan
from distrun.data.shards import Batches, Samples, Stream, pick_rows, pick_samples
from distrun.data.waiting import new_judge
from distrun.errors import UsageError
from distrun.runtime import world
from distrun.runtime.collectives import consistency
from distrun.runtime.numbering import Numbering

_calls = Numbering()


def shard(
    data: Any,
    batch_size: int | None = None,
    *,
    shuffle: bool | int = False,
    seed: int = 0,
    drop_remainder: bool = False,
    **loader: Any,
) -> Any:
    """This rank's part of `data`, as long as every other rank's. All ranks call it with the same data, in the same
    order.

    Without a `batch_size` it returns what it was given, with fewer samples; with one, this rank's batches, so many
    samples each, to go through or to hand to `fit`:

    | data | shard(data) | shard(data, 32) |
    | --- | --- | --- |
    | arrays (numpy, torch, JAX), also in tuples or dicts | arrays | `Batches`; with Keras, a keras.utils.PyDataset |
    | list or other sequence of samples | sequence | the same, of stacked samples |
    | generator or other iterable of samples | iterable | iterable of stacked samples |
    | tf.data.Dataset of samples | tf.data.Dataset | tf.data.Dataset |
    | torch Dataset or IterableDataset | the same, for a DataLoader | DataLoader; `loader` are its other arguments |
    | keras.utils.PyDataset of batches | keras.utils.PyDataset | |

    The ranks deal out the samples in turn, so the k-th batches of N ranks are together the k-th batch of one process
    that takes N times as many. In an epoch every sample is taken once, except as `padded` and `dropped` of the result
    say: if the ranks cannot divide the samples evenly, some ranks take one more, from the first of the data or, in a
    stream, from those of its last round; with `drop_remainder`, the samples that do not fill a batch on every rank are
    left out instead.

    `shuffle=True` takes the samples in an order that depends on `seed` and the epoch alone. For a stream give the
    number of samples to choose from: it cannot be shuffled as a whole. Each iteration over the result is another epoch;
    `set_epoch(n)` says which is next, and must be called before every epoch for a torch Dataset in a DataLoader of
    one's own. Where distrun.keras is imported, `fit` keeps that order; elsewhere pass it `shuffle=False`, or Keras
    mixes the batches once more. Arrays without `batch_size` are those of epoch 0.

    Batches tell when this rank waits too long for its input, see `watch`; to a tf.data.Dataset, apply it last.

    Raises:
        UsageError: fewer samples than ranks; arrays of different lengths; an impossible argument; an unknown kind of
            data.
        MismatchError: the ranks gave data of different lengths, or other arguments.
        NotInitializedError: before `init()`.
    """
    division = Division(world.rank(), world.size(), batch_size, shuffle, seed, drop_remainder)
    kind = _kind(data)
    if loader and kind is not _torch:
        raise UsageError(
            f"{', '.join(loader)}: only for a torch Dataset are there arguments of a DataLoader; leave it out"
        )
    return kind(data, division, **loader)


def _arrays(data: Any, division: Division) -> Any:
    plan = Plan(division, _agreed(structures.rows(data), division))
    if division.batch_size is None:
        return structures.take(data, plan.indices(0))
    return _batches(pick_rows(data), plan)


def _sequence(data: Any, division: Division) -> Any:
    plan = Plan(division, _agreed(len(data), division))
    return Samples(data, plan) if division.batch_size is None else _batches(pick_samples(data), plan)


def _stream(data: Any, division: Division) -> Any:
    _agreed(None, division)
    return Stream(data, division, new_judge())


def _tensorflow(data: Any, division: Division) -> Any:
    from distrun.data import tf_data

    length, seeds = tf_data.length(data), tf_data.seeds(data)
    if (0, 0) in seeds and division.ranks > 1:
        raise UsageError(
            "the tf.data.Dataset shuffles without a seed, so every rank would take its part of another order: give its "
            "shuffle() a seed, or let shard shuffle"
        )
    _agreed(length, division, *(f"shuffle() with the seeds {one} and {other}" for one, other in seeds))
    return tf_data.divided(data, division, None if length is None else Plan(division, length))


def _torch(data: Any, division: Division, **loader: Any) -> Any:
    from distrun.data import torch_data

    samples: Any
    if torch_data.is_stream(data):
        _agreed(None, division)
        samples = torch_data.DatasetStream(data, division)
    else:
        samples = torch_data.DatasetSamples(data, Plan(division, _agreed(len(data), division)))
    if division.batch_size is not None:
        return torch_data.Loader(samples, division, new_judge(), loader)
    if loader:
        raise UsageError(
            f"{', '.join(loader)}: without a batch_size there is no DataLoader to give that to; give a batch_size"
        )
    return samples


def _keras(data: Any, division: Division) -> Any:
    from distrun.data import keras_data

    if division.batch_size is not None:
        raise UsageError(
            f"batch_size={division.batch_size} for a PyDataset, whose items are batches already: leave it out, each "
            "rank takes whole items"
        )
    if data.num_batches is None:
        raise UsageError(
            "a PyDataset without end cannot be divided from outside: let its __getitem__(i) make item i * "
            "distrun.size() + distrun.rank()"
        )
    return keras_data.PyDatasetPart(data, Plan(division, _agreed(data.num_batches, division)), new_judge())


def _batches(pick: Any, plan: Plan) -> Batches:
    if "keras" not in sys.modules:
        return Batches(pick, plan, new_judge())
    from distrun.data import keras_data

    return keras_data.KerasBatches(pick, plan, new_judge())


def _agreed(samples: int | None, division: Division, *more: str) -> Any:
    """The number of samples, which is the same on all ranks, as are the arguments."""
    if division.ranks > 1:
        length = "samples without a known end" if samples is None else f"{samples} samples"
        settings = ("batch_size", "shuffle", "seed", "drop_remainder")
        entries = [length, *(f"{name}={getattr(division, name)!r}" for name in settings), *more]
        consistency.compare(entries, "the data given to distrun.data.shard", f"distrun.data.{_calls.next()}")
    return samples


def _kind(data: Any) -> Any:
    """The function above that divides such data. Frameworks that nobody has imported have made no data."""
    if (tensorflow := sys.modules.get("tensorflow")) and isinstance(data, tensorflow.data.Dataset):
        return _tensorflow
    if (torch := sys.modules.get("torch.utils.data")) and isinstance(data, torch.DataLoader):
        raise UsageError(
            "a DataLoader has made its batches already: give shard the dataset, and the DataLoader's arguments"
        )
    if torch and isinstance(data, torch.Dataset):
        return _torch
    if (keras := sys.modules.get("keras")) and isinstance(data, keras.utils.PyDataset):
        return _keras
    if isinstance(data, (tuple, dict)) or hasattr(data, "shape"):
        return _arrays
    if not isinstance(data, (str, bytes, Mapping)):
        if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
            return _sequence
        if isinstance(data, Iterable):
            return _stream
    raise UsageError(
        f"data of type {type(data).__name__} cannot be divided: give arrays (also in a tuple or dict), a list or "
        "iterable of samples, a tf.data.Dataset, a torch Dataset or a keras.utils.PyDataset"
    )
