"""Dividing data of any kind among the ranks."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar, overload

from distrun.data import structures
from distrun.data.plan import Division, Plan, StreamPlan
from distrun.data.position import Position
from distrun.data.shards import Batches, Samples, Stream, pick_samples
from distrun.data.waiting import new_judge
from distrun.errors import UsageError
from distrun.runtime.collectives import consistency
from distrun.runtime.operations.numbering import Numbering
from distrun.runtime.world import regroup, world

if TYPE_CHECKING:
    from torch.utils.data import Dataset, IterableDataset
    from typing_extensions import Unpack

    from distrun.data.torch_data import DatasetSamples, DatasetStream, Loader

log = logging.getLogger("distrun")

_calls = Numbering()


class _Array(Protocol):
    @property
    def shape(self) -> Any: ...


class _Options(TypedDict, total=False):
    shuffle: bool | int
    seed: int
    drop_remainder: bool
    pad: bool
    position: Position | None
    elastic: bool | None


_Arrays = TypeVar("_Arrays", bound="_Array | tuple[Any, ...] | dict[Any, Any]")


# mypy sees that a tuple is a Sequence, too, and that an IterableDataset is a Dataset: the first that fits counts.
@overload
def shard(  # type: ignore[overload-overlap]
    data: _Arrays, batch_size: None = None, **options: Unpack[_Options]
) -> _Arrays: ...
@overload
def shard(data: _Array | tuple[Any, ...] | dict[Any, Any], batch_size: int, **options: Unpack[_Options]) -> Batches: ...
@overload
def shard(  # type: ignore[overload-overlap]
    data: IterableDataset[Any], batch_size: None = None, **options: Unpack[_Options]
) -> DatasetStream: ...
@overload
def shard(data: Dataset[Any], batch_size: None = None, **options: Unpack[_Options]) -> DatasetSamples: ...
@overload
def shard(data: Dataset[Any], batch_size: int, **loader: Any) -> Loader: ...
@overload
def shard(data: Sequence[Any], batch_size: None = None, **options: Unpack[_Options]) -> Samples: ...
@overload
def shard(data: Sequence[Any], batch_size: int, **options: Unpack[_Options]) -> Batches: ...
@overload
def shard(data: Any, batch_size: int | None = None, **loader: Any) -> Any: ...
def shard(
    data: Any,
    batch_size: int | None = None,
    *,
    shuffle: bool | int = False,
    seed: int = 0,
    drop_remainder: bool = False,
    pad: bool = True,
    position: Position | None = None,
    elastic: bool | None = None,
    **loader: Any,
) -> Any:
    """Return this rank's part of `data`, of the same size on every rank. All ranks call it with the same data, in the
    same order.

    Without a `batch_size` it returns the kind of data that it was given, with fewer samples. With one, it returns this
    rank's batches of that many samples, to iterate over or to pass to `fit`:

    | data | shard(data) | shard(data, 32) |
    | --- | --- | --- |
    | arrays (numpy, torch, JAX), also in tuples or dicts | arrays | `Batches`; with Keras, a keras.utils.PyDataset |
    | list or other sequence of samples | sequence | the same, of stacked samples |
    | generator or other iterable of samples | iterable | iterable of stacked samples |
    | tf.data.Dataset of samples | tf.data.Dataset | tf.data.Dataset |
    | torch Dataset or IterableDataset | the same, for a DataLoader | DataLoader; `loader` are its other arguments |
    | keras.utils.PyDataset of batches | keras.utils.PyDataset | |

    Samples are dealt to the ranks in turn, so the k-th batches of N ranks together are the k-th batch of one process
    with N times the batch size. In an epoch every sample is taken once, except for the `padded` and `dropped` samples
    of the result. If the ranks cannot divide the samples evenly, some ranks take one more, from the beginning of the
    data or, in a stream, from its last round. With `drop_remainder`, samples that do not fill a batch on every rank are
    left out instead. With `pad=False` every sample is taken exactly once: in the last step some ranks have one sample
    less than others, or one more than `batch_size`. (There may be fewer samples than ranks when the rest of an epoch is
    divided again. Then the ranks without one still take a sample that another rank has.)

    `shuffle=True` takes the samples in an order that depends only on `seed` and the epoch. A stream cannot be shuffled
    as a whole, so give the number of samples to choose from. Each iteration over the result is another epoch.
    `set_epoch(n)` sets the next one, and must be called before every epoch for a torch Dataset in the user's own
    DataLoader. If distrun.keras is imported, `fit` keeps that order. Otherwise pass `shuffle=False` to it, or Keras
    shuffles the batches again. Arrays without `batch_size` are the ones of epoch 0.

    The result has a `position`, and has its methods, too: it belongs in the state of an elastic training, see
    `Position`. When ranks come or go, the rest of the epoch is divided among the present ranks, and iterators made
    before raise an error. Given a `position`, the result continues from there, for example in a training function that
    creates its data each time it is entered. A tf.data.Dataset has a position only in an elastic job, or with
    `elastic=True`, since its length is unknown then. A generator can be iterated over only once, so it cannot be
    divided again.

    Batches warn when this rank waits too long for its input, see `watch`. To a tf.data.Dataset, apply `watch` last.

    Raises:
        UsageError: there are fewer samples than ranks, arrays have different lengths, an argument is impossible, or the
            kind of data is unknown.
        MismatchError: the ranks gave data of different lengths, or other arguments.
        NotInitializedError: before `init()`.
    """
    division = Division(world.rank(), world.size(), batch_size, shuffle, seed, drop_remainder, pad)
    kind = _kind(data)
    if loader and kind is not _torch:
        raise UsageError(
            f"{', '.join(loader)}: only for a torch Dataset are there arguments of a DataLoader; leave it out"
        )
    if kind is _tensorflow and (regroup.is_elastic() if elastic is None else elastic):
        position = position or Position()
    return kind(data, division, position, **loader)


def _arrays(data: Any, division: Division, position: Position | None) -> Any:
    plan = Plan(division, _agreed(structures.rows(data), division))
    if division.batch_size is None:
        return structures.take(data, plan.indices(0))
    return _batches(partial(structures.take, data), plan, position)


def _sequence(data: Any, division: Division, position: Position | None) -> Any:
    plan = Plan(division, _agreed(len(data), division))
    if division.batch_size is None:
        return Samples(data, plan, position)
    return _batches(pick_samples(data), plan, position)


def _stream(data: Any, division: Division, position: Position | None) -> Any:
    _agreed(None, division)
    _refuse_uneven(division)
    if regroup.is_elastic() and iter(data) is data:
        _warn(f"a {type(data).__name__}, which can be gone through once", "an iterable that starts again each time")
    return Stream(data, division, new_judge(), position)


def _tensorflow(data: Any, division: Division, position: Position | None) -> Any:
    from distrun.data import tf_data

    length, seeds = tf_data.length(data), tf_data.seeds(data)
    if (0, 0) in seeds and division.ranks > 1:
        raise UsageError(
            "the tf.data.Dataset shuffles without a seed, so every rank would take its part of another order: give its "
            "shuffle() a seed, or let shard shuffle"
        )
    _agreed(length, division, *(f"shuffle() with the seeds {one} and {other}" for one, other in seeds))
    if length is None:
        _refuse_uneven(division)
    plan = StreamPlan(division) if length is None else Plan(division, length)
    if position is None:
        return tf_data.divided(data, plan)
    if tf_data.reshuffles(data):
        raise UsageError(
            "the tf.data.Dataset shuffles again in each iteration, so ranks that come in would take their part of "
            "another order: let shard shuffle, or give its shuffle() reshuffle_each_iteration=False"
        )
    return tf_data.elastic(data, plan, position)


def _torch(data: Any, division: Division, position: Position | None, **loader: Any) -> Any:
    from distrun.data import torch_data

    samples: Any
    if torch_data.is_stream(data):
        _agreed(None, division)
        _refuse_uneven(division)
        samples = torch_data.DatasetStream(data, division, position)
    else:
        samples = torch_data.DatasetSamples(data, Plan(division, _agreed(len(data), division)), position)
    if division.batch_size is not None:
        made = torch_data.Loader(samples, new_judge(), loader)
        if regroup.is_elastic() and not made.can_go_on:
            _warn("an IterableDataset in several workers, each of which has read some of it", "num_workers=1")
        return made
    if loader:
        raise UsageError(
            f"{', '.join(loader)}: without a batch_size there is no DataLoader to give that to; give a batch_size"
        )
    return samples


def _keras(data: Any, division: Division, position: Position | None) -> Any:
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
    if not division.pad:
        raise UsageError(
            "pad=False for a PyDataset, whose items are batches: some ranks would have a step more than others; leave "
            "pad out"
        )
    return keras_data.PyDatasetPart(data, Plan(division, _agreed(data.num_batches, division)), new_judge(), position)


def _batches(pick: Any, plan: Plan, position: Position | None) -> Batches:
    if "keras" not in sys.modules:
        return Batches(pick, plan, new_judge(), position)
    from distrun.data import keras_data

    return keras_data.KerasBatches(pick, plan, new_judge(), position)


def _agreed(samples: int | None, division: Division, *more: str) -> Any:
    """Return the number of samples, after checking that it and the arguments are the same on all ranks."""
    name = f"distrun.data.{_calls.next()}"
    # A rank that joined later runs its script alone. Its position shows whether it has the same data as the others.
    if division.ranks > 1 and not (regroup.is_elastic() and world.generation() > 1):
        length = "samples without a known end" if samples is None else f"{samples} samples"
        settings = ("batch_size", "shuffle", "seed", "drop_remainder", "pad")
        entries = [length, *(f"{name}={getattr(division, name)!r}" for name in settings), *more]
        consistency.compare(entries, "the data given to distrun.data.shard", name)
    return samples


def _warn(what: str, remedy: str) -> None:
    log.warning("ranks that come or go in an epoch cannot go on with %s: give shard %s", what, remedy)


def _refuse_uneven(division: Division) -> None:
    if not division.pad:
        raise UsageError(
            "pad=False for data of unknown length, whose last round nobody knows beforehand: leave pad out, or give "
            "data with a length"
        )


def _kind(data: Any) -> Any:
    """Return the function above for this kind of data. A framework that is not imported cannot have made the data."""
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
