"""Saving and restoring the state of a training run: the public interface.

`save` never skips a step. Ranks that skipped different steps would have no complete checkpoint, and a script that saves
faster than its disk should learn that from its step time.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

from distrun.checkpoint import file_format, folder, keras_objects, trees
from distrun.checkpoint.background import Writer
from distrun.checkpoint.folder import NOTES, Checkpoint
from distrun.checkpoint.loading import VERSION, newest
from distrun.checkpoint.ranks import present
from distrun.checkpoint.snapshot import Snapshot, shares
from distrun.errors import CheckpointError, UsageError
from distrun.runtime.world import regroup
from distrun.tracing import layout, recording

_ATTEMPT = (
    *("DISTRUN_JOB", "DISTRUN_GENERATION", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT"),
    "DISTRUN_TRIAL",
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "PMIX_NAMESPACE", "PMI_JOBID"),
)
"""Variables that have the same values on all ranks of a job, and other values once the ranks are started again."""


class CheckpointManager:
    """Saves the state of a run in a folder, in the background, and restores the newest complete checkpoint.

    Values are saved and restored by name, as keyword arguments of `save` and `restore`. A value may be

    - an object with `state_dict` and `load_state_dict`: models, optimizers, schedulers of torch, wrapped or not;
    - a model or an optimizer of Keras 3 or Keras 2 (a compiled model brings its optimizer), a `tf.Variable`;
    - tensors of torch on any device, arrays of JAX and numpy, pytrees (optax's states, flax's too), named tuples;
    - numbers, texts, bytes, None, and lists, tuples, sets and dicts of all these.

    All ranks of a job make the same calls. With `sharded=False` rank 0 writes everything, and only it needs to see the
    folder. With `sharded=True` each rank writes a share of the tensors, which must be equal on all ranks, to a folder
    that all hosts share. Values other than tensors are always rank 0's. Any number of ranks may restore either form.

    Use it in a `with`, or call `close`, or do neither: an interpreter that exits waits for what is being written.
    """

    def __init__(self, directory: str | os.PathLike[str], max_to_keep: int | None = 3, sharded: bool = False) -> None:
        """Make a manager. Nothing is read or written yet.

        Args:
            directory: the folder, one for each run. `save` makes it.
            max_to_keep: how many of the newest checkpoints are kept. None: all. There is one more while one is written.
            sharded: whether each rank writes a share of the tensors.

        Raises:
            UsageError: `max_to_keep` is less than 1.
        """
        if max_to_keep is not None and (type(max_to_keep) is not int or max_to_keep < 1):
            raise UsageError(f"max_to_keep={max_to_keep!r}: it is a whole number from 1, or None to keep all")
        self._run = Path(directory).absolute()
        self._keep = max_to_keep
        self._is_sharded = sharded
        self._own = secrets.token_hex(4)
        self._snapshot = Snapshot()
        self._writer = Writer()
        self._damaged: set[Checkpoint] = set()
        self._has_saved = False

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Saving

    def save(self, step: int, /, **state: Any) -> None:
        """Copy a state in memory, and write it to the disk in the background while training continues.

        A call waits until the checkpoint before is written. That one stays complete, whatever happens meanwhile.

        Args:
            step: the `step` that `restore` returns: the number of steps, or of epochs, that are done.
            state: named values.

        Raises:
            UsageError: a checkpoint cannot hold a value.
            CheckpointError: the checkpoint before this one could not be written, or there is no folder for this one.
        """
        with recording.during(layout.SAVING), ExitStack() as complete:
            self._writer.wait()
            for value in _with_more(state):
                complete.enter_context(value.complete_state())
            self._save(step, state)

    def _save(self, step: int, state: dict[str, Any]) -> None:
        if not self._has_saved:
            self._has_saved = True
            regroup.show_imports()
        if type(step) is not int or step < 0:
            raise UsageError(f"save: step={step!r} is not a whole number >= 0")
        ranks = present()
        count = ranks.size if self._is_sharded else 1
        if ranks.rank >= count:
            return
        builder = trees.Builder()
        form = {name: builder.form(value, name) for name, value in state.items()}
        dealt = shares({name: tensor.size for name, tensor in builder.tensors.items()}, count)
        own = {name: builder.tensors[name] for name in dealt[ranks.rank]}
        checkpoint = Checkpoint(self._run, step, self._attempt(count), count)
        path = checkpoint.part(ranks.rank)
        try:
            checkpoint.folder.mkdir(parents=True, exist_ok=True)
            if count > 1:  # if this step is saved again, parts of both attempts must not look like one checkpoint
                path.unlink(missing_ok=True)
        except OSError as error:
            raise self._not_written(checkpoint, error) from error
        entries = self._snapshot.take(own)
        notes: dict[str, Any] = {"version": VERSION, "attempt": checkpoint.attempt}
        if ranks.rank == 0:
            notes |= {"step": step, "state": form, "shares": dealt if count > 1 else []}

        def write() -> None:
            try:
                if ranks.rank == 0:
                    notes["serial"] = max((each.serial for each in folder.look(self._run)), default=0) + 1
                data = self._snapshot.data(entries)
                file_format.write(path, {NOTES: json.dumps(notes, separators=(",", ":"))}, entries, data)
                file_format.sync_folder(self._run)
                # Each rank looks: only the last to write its part finds the checkpoint whole.
                folder.prune(self._run, self._keep, checkpoint.attempt, self._damaged)
            except OSError as error:
                raise self._not_written(checkpoint, error) from error

        self._writer.start(write)

    def wait(self) -> None:
        """Wait until what this process writes is on the disk.

        Raises:
            CheckpointError: it could not be written.
        """
        self._writer.wait()

    def close(self) -> None:
        """Wait as `wait` does, raise what it raises, and free the memory of the copy."""
        try:
            self._writer.wait()
        finally:
            self._snapshot = Snapshot()

    def _attempt(self, count: int) -> str:
        """Return the text that tells checkpoints of the same step apart, equal on all ranks that write parts."""
        if count == 1:
            return self._own
        variables = "\n".join(os.environ.get(name, "") for name in _ATTEMPT)
        return hashlib.blake2b(variables.encode(), digest_size=4).hexdigest()

    def _not_written(self, checkpoint: Checkpoint, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"the checkpoint of step {checkpoint.step} could not be written to {self._run}: {error.strerror or error}; "
            "those before it are as they were"
        )

    # Restoring

    def restore(self, step: int = 0, **state: Any) -> SimpleNamespace:
        """Restore the newest complete checkpoint on all ranks.

        Damaged checkpoints are skipped, with a warning. Objects with a state (models, optimizers, variables) are
        overwritten in place. An optimizer of Keras that is given without its model must have been built. All other
        values are new ones, and their tensors are on the devices of the given ones. Rank 0 chooses and reads the
        checkpoint. With `sharded=True` all ranks read.

        Args:
            step: the `step` of the result if there is no checkpoint.
            state: named values: objects to overwrite, and values to return if there is no checkpoint. Values that were
                saved may be left out.

        Returns:
            An object with the attributes `step`, as it was saved, and one for each name in `state`.

        Raises:
            UsageError: the checkpoint does not have a name, or its value does not fit.
            CheckpointError: the folder cannot be read, is not shared by all hosts although `sharded=True` needs that,
                or the checkpoint before could not be written.
        """
        self._writer.wait()
        ranks = present()
        loaded = newest(self._run, ranks, self._is_sharded, self._damaged)
        if loaded is None:
            return SimpleNamespace(step=step, **state)
        notes, data = loaded
        form = notes["state"]
        for name in state:
            if name not in form:
                raise UsageError(
                    f"the checkpoint of step {notes['step']} in {self._run} has no {name!r}, only "
                    f"{', '.join(form) or 'its step'}: restore what was saved, or begin a new folder"
                )
        values = {name: trees.restored(form[name], data, like, name) for name, like in state.items()}
        return SimpleNamespace(step=notes["step"], **values)


def _with_more(value: Any) -> Iterator[Any]:
    """Yield the objects in `value` that have a `complete_state()`, such as optimizers with compressed gradients.

    Their state is complete only within that context, which all ranks enter together.
    """
    if isinstance(value, dict):
        for each in value.values():
            yield from _with_more(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _with_more(each)
    elif keras_objects.is_model(value) or keras_objects.is_optimizer(value):
        yield from _with_more(keras_objects.feedback_of(value))
    elif callable(getattr(value, "complete_state", None)):
        yield value
