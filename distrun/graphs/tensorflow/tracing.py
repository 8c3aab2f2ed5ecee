"""The graph that is being built: the names of its collectives, and a check that XLA does not compile it.

A name must be the same on all ranks, even if only one of them traces a function again, for example for a smaller last
batch. So collectives are counted per graph, not per process.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import control_flow_util
from tensorflow.python.util import tf_stack

from distrun.errors import UsageError
from distrun.runtime.collectives.call import Call
from distrun.runtime.operations.call_site import call_site, is_user_code

_counts: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()


def name_in_graph(kind: str) -> str:
    """Return a name for the next collective of `kind` in the graph that is being built: `train_step.allreduce.0`."""
    graph, place = _counted(kind)
    return f"{getattr(graph, 'name', 'graph')}.{kind}.{place}"


def told_apart(call: Call) -> Call:
    """Return `call` with a name that is unique each time it is used in the graph that is being built.

    A TensorFlow 1 graph may run collectives of the same name concurrently, or in a different order on each rank.
    """
    if tf.executing_eagerly() or not call.name:
        return call
    _, place = _counted(call.name)
    return call.named(f"again.{place}") if place else call


def _counted(what: str) -> tuple[Any, int]:
    """Return the graph that is being built, and how often `what` has been counted in it before. Count it."""
    graph = tf.compat.v1.get_default_graph()
    while isinstance(graph, FuncGraph) and type(graph) is not FuncGraph:  # a branch or a loop: part of its function
        graph = graph.outer_graph
    counter = _counts.setdefault(graph, Counter())
    counter[what] += 1
    return graph, counter[what] - 1


def site() -> str:
    """Return the current line of user code: `train.py:12 in train_step`.

    AutoGraph runs rewritten copies of the user's functions. In a graph, its own stack has the original lines.
    """
    if tf.executing_eagerly():
        return call_site()
    for frame in reversed(tf_stack.extract_stack()):
        if is_user_code(frame.filename):
            return f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"
    return ""


def refuse_xla(kind: str) -> None:
    """Raise a UsageError if XLA, which only supports its own operations, compiles the graph that is being built."""
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise UsageError(
            f"{kind} is inside jit_compile=True, and XLA cannot compile collectives: use jit_compile=False for this "
            "function"
        )
