"""The command of a rank of `distrun.run`: read the pickled call from one descriptor, and write its result to another
and the traceback of its exception to a third.

It is run by its path, and imports nothing of distrun before it has adopted the sys.path of the program that called
`distrun.run`.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import traceback


def main(call: int, result: int, trace: int) -> None:
    """Call the function, and send its result or its exception.

    Args:
        call: descriptor of the pickled call, in memory that all ranks share.
        result: descriptor of this rank's result pipe.
        trace: descriptor of its pipe for the traceback of an exception that the caller raises again.
    """
    for descriptor in (call, result, trace):
        os.set_inheritable(descriptor, False)
    # Reopened, as the ranks share the position of the inherited descriptor.
    with open(f"/proc/self/fd/{call}", "rb") as memory:
        sys.path[:] = _search_path(pickle.load(memory))
        pickled = memory.read()
    _follow_mode()
    import cloudpickle

    try:
        function, args, kwargs = pickle.loads(pickled)
        del pickled
        value = cloudpickle.dumps(function(*args, **kwargs))
    except Exception as error:
        text = traceback.format_exc()
        _send(result, False, _pickled(error), text)
        if sys.excepthook is sys.__excepthook__ and not _is_elastic():
            sys.excepthook = lambda *_: _write(trace, text)
        raise
    _send(result, True, value, "")


def _search_path(given: list[str]) -> list[str]:
    """Return the search path for modules: `given`, the caller's, or on a host with a shipped environment, the shipped
    entries of `given`, this process's own path, and the other entries of `given`.
    """
    shipped = os.environ.get("DISTRUN_SHIPPED")
    if shipped is None:
        return given
    trees = json.loads(shipped)["trees"]
    found = []
    for entry in given:
        for source, place in trees:
            if entry == source or entry.startswith(f"{source}/"):
                found.append(place + entry[len(source) :])
    own = sys.path[1:]  # without this file's folder
    return [*found, *own, *(entry for entry in given if entry not in own)]


def _follow_mode() -> None:
    """Make `horovod` importable in Horovod mode, as the caller's search path does not have it."""
    from distrun.contract.horovod import install_as_horovod, is_on

    if is_on(os.environ):
        install_as_horovod()


def _is_elastic() -> bool:
    """Whether another process may take the place of this one, so that the caller hears nothing of its exception."""
    from distrun.contract.elastic.variables import CONTROL_FD

    return CONTROL_FD in os.environ


def _pickled(error: Exception) -> bytes:
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(error))
    except Exception:  # then the caller gets the traceback as text only
        return b""


def _send(result: int, returned: bool, pickled: bytes, text: str) -> None:
    with open(result, "wb") as pipe:
        pickle.dump((returned, pickled, text), pipe)


def _write(trace: int, text: str) -> None:
    with open(trace, "w", errors="backslashreplace") as pipe:
        pipe.write(text)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
