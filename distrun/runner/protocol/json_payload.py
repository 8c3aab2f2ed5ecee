"""Payloads that are JSON objects."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class JsonPayload:
    """A dataclass that is the payload of a message."""

    def to_json(self) -> bytes:
        """Return the payload. Bytes that are not UTF-8 (surrogates in Python) survive as escapes."""
        return json.dumps(self, default=vars).encode("ascii")

    @classmethod
    def from_json(cls, payload: bytes) -> Self:
        """Return what `to_json` wrote."""
        return cls(**json.loads(payload))
