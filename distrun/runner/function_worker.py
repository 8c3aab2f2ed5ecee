"""What a rank of `distrun.run` executes: read the pickled call from one descriptor, write its result to another.

It runs by its path and imports nothing of distrun before it has taken over the sys.path of the calling program.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from typing import Any


def main(call: int, result: int) -> None:
    """Args: descriptors of the call, in memory shared by all ranks, and of this rank's pipe for the result."""
    os.set_inheritable(call, False)
    os.set_inheritable(result, False)
    with open(f"/proc/self/fd/{call}", "rb") as memory:  # opened anew: the ranks share the descriptor's position
        sys.path[:] = pickle.load(memory)
        pickled = memory.read()
    try:
        function, args, kwargs = pickle.loads(pickled)
        del pickled
        value = function(*args, **kwargs)
    except Exception as error:
        _send(result, False, error, traceback.format_exc())
        raise
    _send(result, True, value, "")


def _send(result: int, returned: bool, value: Any, text: str) -> None:
    import cloudpickle

    try:
        pickled = cloudpickle.dumps(value)
    except Exception:
        if returned:  # then it is this exception that the caller gets
            raise
        pickled = b""
    with open(result, "wb") as pipe:
        pickle.dump((returned, pickled, text), pipe)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
