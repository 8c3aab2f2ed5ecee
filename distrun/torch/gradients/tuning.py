"""Tuning the buckets of an optimizer's gradients: the ranks measure steps together and change their plans together.

A step lasts from the end of one `optimizer.step()` to the end of the next. At its end the ranks exchange its duration
(one number, and the largest is used), and each of them feeds it to the same policy with the same random seed, so all
change to the same plan at the beginning of the next backward pass. The plan is made from the ranks' earlier agreement,
so a change needs no communication. After the tuning nothing is exchanged, and the chosen plan stays.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random

import numpy as np
import torch

from distrun.contract.settings import HALF_PRECISION, current, given
from distrun.errors import JobAbortedError
from distrun.runtime.collectives.call import Call
from distrun.runtime.engine.autotuning import turns
from distrun.runtime.engine.autotuning.chosen import Setting, Value
from distrun.runtime.engine.autotuning.journal import Journal
from distrun.runtime.engine.autotuning.policy import Policy
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.reduction import Max
from distrun.runtime.world import world
from distrun.torch import cuda
from distrun.torch.gradients.parameters import TrackedParameters
from distrun.torch.gradients.planning import NOTE, Agreement, Settings, plan

_ON, _KEEPS_BUCKETS, _KEEPS_FIRST, _FIRST_WIRE = 1, 2, 4, 8  # bits of the note's first byte
_JOINED = "a rank has no more data and has called join()"


def own_note() -> bytes:
    """Return this rank's note about tuning, which is used if it is rank 0: what may be changed, and a random seed."""
    chosen, fixed = current(), given(os.environ)
    flags = _ON | _KEEPS_BUCKETS * ("bucket_bytes" in fixed) | _KEEPS_FIRST * ("first_bucket_bytes" in fixed)
    for number, dtype in enumerate(HALF_PRECISION):
        flags |= (_FIRST_WIRE << number) * (dtype in chosen.autotune_wire_dtypes and not chosen.wire_dtype)
    return bytes([flags]) + os.urandom(NOTE - 1)


class BucketTuner:
    """Tunes the buckets of one optimizer, in the same way on every rank."""

    def __init__(self, name: str, parameters: TrackedParameters, settings: Settings, agreement: Agreement) -> None:
        """
        Args:
            name: the prefix of the names of the optimizer's operations.
            parameters: the optimizer's parameters.
            settings: the settings without tuning.
            agreement: the ranks' agreement, with rank 0's note.
        """
        self.default = settings
        """The settings without tuning."""
        self.agreement = agreement
        """The agreement from which plans are made."""
        self._name = f"{name}.autotune"
        self._parameters = parameters
        self._wanted = self._used = settings
        self._policy: Policy | None = None
        self._journal: Journal | None = None
        self._is_over = False
        self._is_on_gpu = any(cuda.kind(parameter) == cuda.CUDA for parameter in parameters.tensors)
        self._began = 0.0

    # The steps --------------------------------------------------------------------------------------------------------

    def step_ended(self) -> None:
        """Note that the optimizer has made a step."""
        if self._is_over or not turns.take(self):
            return
        policy = self._policy or self._begin()
        if turns.has_joined():
            self._stop(_JOINED)
        elif self._is_on_gpu and cuda.is_capturing():
            self._stop("a step was captured into a CUDA graph")
        elif policy.outcome is None:
            self._note_step(policy)
        if policy.outcome is not None:
            assert self._journal is not None
            self.retire()
            self._journal.end(policy.outcome)
        self._began = time.perf_counter()

    def _begin(self) -> Policy:
        default: dict[str, Value] = {"bucket_bytes": self.default.threshold, "first_bucket_bytes": self.default.first}
        if any(name == "wire_dtype" for name, _ in self._choices()):
            default["wire_dtype"] = self.default.wire
        lot = Random(self.agreement.note)
        self._policy = Policy(default, self._choices(), lot, self._effect)
        is_first = world.rank() == 0
        file = current().autotune_log if is_first else None
        self._journal = Journal("gradients", world.generation(), file, is_first)
        return self._policy

    def _note_step(self, policy: Policy) -> None:
        if self._is_on_gpu:  # the step includes the work that it has queued
            torch.cuda.current_stream().synchronize()
        seconds = None
        if policy.is_measuring:
            try:
                seconds = self._slowest(time.perf_counter() - self._began)
            except JobAbortedError:  # the next operation of the training raises it: this step has been made
                self._stop("a rank is gone")
                return
            if seconds is None:
                self._stop(_JOINED)
                return
        row = policy.record(seconds)
        assert self._journal is not None
        self._journal.add(row)
        self._wanted = self._settings(policy.setting)

    def _slowest(self, seconds: float) -> float | None:
        """Return the duration of the slowest rank in seconds, or None if a rank has called `join()`."""
        times = (np.array([seconds]),)
        request = Call("allreduce", self._name, Max).request("float64", ((1,),))
        handle = Handle(world.engine(), request, times, times)
        handle.engine.run(handle)
        handle.wait()
        return None if handle.taking_part else float(times[0][0])

    def _stop(self, why: str) -> None:
        """End the tuning with the default settings."""
        if self._policy is not None and self._policy.outcome is None:
            self._policy.stop(why)
        self._wanted = self.default

    def retire(self) -> None:
        """End this tuner, which is done or whose agreement no longer holds, and let another one take its turn."""
        self._is_over = True
        turns.give_back(self)

    # The plans --------------------------------------------------------------------------------------------------------

    def due(self) -> Settings | None:
        """Return the settings for new buckets, at the beginning of a pass, or None if the buckets stay."""
        if turns.has_joined() and not self._is_over:
            self._stop(_JOINED)
        if self._wanted == self._used:
            return None
        self._used = self._wanted
        return self._used

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Do not count the time within this context, which is spent on changing settings."""
        began = time.perf_counter()
        yield
        self._began += time.perf_counter() - began

    def _choices(self) -> list[tuple[str, Value]]:
        flags, threshold = self.agreement.note[0], self.default.threshold
        topology = world.topology()
        choices: list[tuple[str, Value]] = []
        if topology.local_size < topology.size and not self.default.wire:
            choices += [
                ("wire_dtype", dtype) for place, dtype in enumerate(HALF_PRECISION) if flags & _FIRST_WIRE << place
            ]
        if not flags & _KEEPS_FIRST:
            choices.append(("first_bucket_bytes", threshold))
        if not flags & _KEEPS_BUCKETS:
            choices += [("bucket_bytes", value) for value in (threshold // 4, threshold * 4, threshold // 16)]
        return choices

    def _settings(self, setting: Setting) -> Settings:
        return replace(
            self.default,
            threshold=int(setting["bucket_bytes"]),
            first=int(setting["first_bucket_bytes"]),
            wire=str(setting.get("wire_dtype", self.default.wire)),
        )

    def _effect(self, setting: Setting) -> object:
        settings = self._settings(setting)
        lists = plan(self._parameters, settings, self.agreement)
        return settings.wire, tuple(tuple(places) for places in lists)
