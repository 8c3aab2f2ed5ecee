"""The command of a rank of `distrun.run`: read the pickled call from one descriptor, write its result to another.

It runs by its path and imports nothing of distrun before it has taken over the sys.path of the calling program.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import traceback


def main(call: int, result: int) -> None:
    """Call the function and send its result, or what it raised.

    Args:
        call: descriptor of the call, in memory that all ranks share.
        result: descriptor of this rank's pipe for the result.
    """
    os.set_inheritable(call, False)
    os.set_inheritable(result, False)
    with open(f"/proc/self/fd/{call}", "rb") as memory:  # opened again: the ranks share the descriptor's position
        sys.path[:] = _search_path(pickle.load(memory))
        pickled = memory.read()
    _follow_mode()
    import cloudpickle

    try:
        function, args, kwargs = pickle.loads(pickled)
        del pickled
        value = cloudpickle.dumps(function(*args, **kwargs))
    except Exception as error:
        _send(result, False, _pickled(error), traceback.format_exc())
        raise
    _send(result, True, value, "")


def _search_path(given: list[str]) -> list[str]:
    """Return the search path for modules: the calling program's; on a host to which something was brought, our own with
    the shipped part of that.

    Args:
        given: the calling program's.
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
    """Find `horovod` where Horovod's mode is on: the caller's search path does not have it."""
    from distrun.contract.horovod import install_as_horovod, is_on

    if is_on(os.environ):
        install_as_horovod()


def _pickled(error: Exception) -> bytes:
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(error))
    except Exception:  # then the caller gets the traceback as text only
        return b""


def _send(result: int, returned: bool, pickled: bytes, text: str) -> None:
    with open(result, "wb") as pipe:
        pickle.dump((returned, pickled, text), pipe)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
