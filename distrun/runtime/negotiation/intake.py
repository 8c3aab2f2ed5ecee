"""Intake: what a rank does with a message of the coordinator, which is most often a decision."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from distrun.errors import CollectiveError, MismatchError, StallError
from distrun.runtime.backends.base import Flat
from distrun.runtime.negotiation import messages
from distrun.runtime.negotiation.decisions import Key
from distrun.runtime.negotiation.eager.piggyback import Piggyback, cache_id_of
from distrun.runtime.negotiation.inquiries import Inquiries
from distrun.runtime.negotiation.pending import PendingOperations
from distrun.runtime.negotiation.whereabouts import whereabouts
from distrun.runtime.operations.handle import Handle
from distrun.runtime.transport.control.control_plane import DEPARTURE, ControlPlane
from distrun.runtime.transport.network_causes import NetworkCauses


class Intake:
    """Turns messages into batches to execute and into operations that are finished; see `PendingOperations`.

    The coordinator takes in its own decisions as every rank does.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        operations: PendingOperations,
        inquiries: Inquiries,
        piggyback: Piggyback | None,
        causes: NetworkCauses | None = None,
    ) -> None:
        """
        Args:
            control_plane: carries answers.
            operations: what is under way here.
            inquiries: what the coordinator has been asked.
            piggyback: where there are several hosts.
            causes: there, too.
        """
        self._control_plane = control_plane
        self._operations = operations
        self._inquiries = inquiries
        self._piggyback = piggyback
        self._causes = causes

    def take_in(self, message: bytes) -> None:
        """Do what a message says, or answer its question."""
        letter = message[:1]
        if letter == messages.EXECUTE:
            if self._piggyback is not None:
                for cache_id in messages.unpack_ids(message):
                    self._piggyback.take(cache_id)  # what came along was not enough
            self._operations.decide(message)
        elif letter == messages.RESULT:
            self._finish_with(message)
        elif letter == messages.DEFINE:
            define = messages.unpack_define(message)
            self._operations.decide_new(define.request, define.cache_id, define.taking_part)
        elif letter == messages.EXECUTE_SOME:
            taking_part, cache_ids = messages.unpack_some(message)
            if self._piggyback is not None:
                for cache_id in cache_ids:
                    self._piggyback.take(cache_id)
            self._operations.decide_some(cache_ids, taking_part)
        elif letter == messages.ALL_JOINED:
            joined = messages.unpack_all_joined(message)
            self._operations.all_joined(joined.process_set, joined.last, joined.unnamed)
        elif letter == messages.RETUNE:
            self._operations.retune(messages.unpack_retune(message))
        elif letter == messages.FAIL:
            fail = messages.unpack_fail(message)
            self._fail(fail.key, StallError(fail.text) if fail.is_stall else MismatchError(fail.text))
        elif letter == messages.MISSING:
            self._inquiries.answered(*messages.unpack_key(message))
        elif letter == messages.SITE_QUESTION:
            key, _ = messages.unpack_key(message)
            self._control_plane.send(0, messages.pack_key(messages.SITE, key, self._operations.site_of(key)))
        elif letter == DEPARTURE:
            self._control_plane.note_departure(message)
        else:
            causes = "" if self._causes is None else self._causes.own()
            self._control_plane.send(0, messages.ANSWER + (whereabouts() + causes).encode())

    def finish_piggybacked(self, piggyback: Piggyback, handle: Handle, payloads: Mapping[int, bytes]) -> Flat:
        """Finish an operation for which the payloads of all other ranks have come; its result."""
        with np.errstate(all="ignore"):
            result = piggyback.finish(handle, payloads)
        self._operations.finish(handle)
        return result

    def _finish_with(self, message: bytes) -> None:
        """The coordinator has sent the result."""
        cache_id = cache_id_of(message)
        handle = self._operations.named(cache_id)
        if self._piggyback is not None:
            self._piggyback.take(cache_id)
        Piggyback.deliver(handle, Piggyback.result_in(message, handle))
        self._operations.finish(handle)

    def _fail(self, key: Key, error: CollectiveError) -> None:
        if self._piggyback is not None:
            # Payloads may have come for every request that the name has stood for: that may be what the ranks disagree
            # about.
            for cache_id in self._operations.cache_ids_of(key):
                self._piggyback.take(cache_id)
        handle = self._operations.pending_under(key)
        if handle is not None:
            handle.error = error
            self._operations.finish(handle)
