"""Intake: what a rank does with a message from the coordinator, which is a decision in most cases."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from distrun.errors import CollectiveError, MismatchError, StallError
from distrun.runtime.backends.base import Flat
from distrun.runtime.negotiation import messages
from distrun.runtime.negotiation.decisions import Key
from distrun.runtime.negotiation.eager.piggyback import Piggyback, cache_id_of, deliver
from distrun.runtime.negotiation.inquiries import Inquiries
from distrun.runtime.negotiation.pending import PendingOperations
from distrun.runtime.negotiation.whereabouts import whereabouts
from distrun.runtime.operations.handle import Handle
from distrun.runtime.transport.control.control_plane import DEPARTURE, ControlPlane
from distrun.runtime.transport.network_causes import NetworkCauses


class Intake:
    """Turns messages into batches to execute and into finished operations. See `PendingOperations`.

    The coordinator takes in its own decisions as every other rank does.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        operations: PendingOperations,
        inquiries: Inquiries,
        piggyback: Piggyback | None,
        causes: NetworkCauses | None = None,
    ) -> None:
        """`piggyback` is given where messages may bring arrays, `causes` where there are several hosts."""
        self._control_plane = control_plane
        self._operations = operations
        self._inquiries = inquiries
        self._piggyback = piggyback
        self._causes = causes

    def take_in(self, message: bytes) -> None:
        """Do what a message asks for, or answer its question."""
        letter = message[:1]
        if letter == messages.EXECUTE:
            if self._piggyback is not None:
                self._piggyback.drop(messages.unpack_ids(message))  # not all ranks sent a payload
            self._operations.decide(message)
        elif letter == messages.RESULT:
            self._finish_with(message)
        elif letter == messages.DEFINE:
            define = messages.unpack_define(message)
            if self._piggyback is not None:
                self._piggyback.drop([define.cache_id])  # some rank may have known the id before
            self._operations.decide_new(define.request, define.cache_id, define.taking_part)
        elif letter == messages.EXECUTE_SOME:
            taking_part, cache_ids = messages.unpack_some(message)
            if self._piggyback is not None:
                self._piggyback.drop(cache_ids)
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
        elif letter == messages.WITHDRAW and self._piggyback is not None:
            self._piggyback.drop_all()
            self._control_plane.send(0, messages.WITHDRAWN)
        elif letter == DEPARTURE:
            self._control_plane.note_departure(message)
        else:
            causes = "" if self._causes is None else self._causes.own()
            self._control_plane.send(0, messages.ANSWER + (whereabouts() + causes).encode())

    def finish_piggybacked(self, piggyback: Piggyback, handle: Handle, payloads: Mapping[int, bytes]) -> Flat:
        """Finish an operation when the payloads of all other ranks have come, and return its result."""
        with np.errstate(all="ignore"):
            result = piggyback.finish(handle, payloads)
        self._operations.finish(handle)
        return result

    def _finish_with(self, message: bytes) -> None:
        """Finish an operation with the result that the coordinator has sent."""
        cache_id = cache_id_of(message)
        handle = self._operations.next_of(cache_id)
        if self._piggyback is not None:
            self._piggyback.take(cache_id)
        deliver(message, handle)
        self._operations.finish(handle)

    def _fail(self, key: Key, error: CollectiveError) -> None:
        if self._piggyback is not None:
            # Drop the payloads of every request that it may be: the ranks disagree about which one it is.
            self._piggyback.drop(self._operations.cache_ids_of(key))
            self._piggyback.has_given_up |= isinstance(error, StallError)
        handle = self._operations.pending.get(key)
        if handle is not None:
            handle.error = error
            self._operations.finish(handle)
