"""The running distrun and its dependencies, for other hosts: their digests and archives."""

from __future__ import annotations

import io
import threading
import zipfile
from pathlib import Path

from distrun.runner.shipping.first_stage import counted, digest, located

NEEDS = ("psutil", "cloudpickle")
"""The dependencies that are brought to hosts without them: an agent needs the first, `distrun.run` the second."""

_PACKAGE = Path(__file__).resolve().parents[2]
_LOCK = threading.Lock()
_digests: dict[str, str] = {}
_archives: dict[str, bytes] = {}


def package_digest(name: str = "distrun") -> str:
    """Return the digest of an installed package, or "" if it is not installed. It is read once."""
    with _LOCK:
        if name not in _digests:
            folder = package_folder(name)
            _digests[name] = digest(folder) if folder else ""
        return _digests[name]


def archive(name: str = "distrun") -> bytes:
    """Return a ZIP file of an installed package. It is packed once.

    Raises:
        OSError: a file of the package cannot be read.
    """
    with _LOCK:
        if name not in _archives:
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as file:
                for entry, path in counted(package_folder(name)):
                    file.writestr(zipfile.ZipInfo(f"{name}/{entry}"), Path(path).read_bytes(), zipfile.ZIP_DEFLATED)
            _archives[name] = packed.getvalue()
        return _archives[name]


def package_folder(name: str) -> str:
    """Return the folder of a package that can be imported here, or "" without one."""
    return str(_PACKAGE) if name == "distrun" else located(name)
