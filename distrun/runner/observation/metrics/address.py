"""The address that metrics are served at: loopback, unless the user gives another."""

from __future__ import annotations

from distrun.errors import UsageError
from distrun.host.endpoints import LAST_PORT
from distrun.host.numerals import whole_number

LOOPBACK = "127.0.0.1"


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of `:9090`, which is 127.0.0.1:9090, of `0.0.0.0:9090` or of `[::]:9090`.

    Raises:
        UsageError: the text has none of these forms.
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    number = whole_number(port, 0, LAST_PORT)
    if not colon or number is None:
        raise UsageError(
            f"--metrics {text!r} is not an address: give :9090 for this machine alone, 10.0.0.7:9090 for one network, "
            "0.0.0.0:9090 for all, or [::1]:9090"
        )
    return host or LOOPBACK, number
