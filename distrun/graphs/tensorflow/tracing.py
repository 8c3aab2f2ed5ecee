"""The graph that is being built: who compiles it, and what collectives are called in it.

A name must be the same on all ranks, also when just one of them traces a function again, for a smaller last batch say.
So collectives are counted in each graph, and not in the process.
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
    """A name for the next collective of a kind in the graph that is being built: `train_step.allreduce.0`."""
    graph, place = _counted(kind)
    return f"{getattr(graph, 'name', 'graph')}.{kind}.{place}"


def told_apart(call: Call) -> Call:
    """Return a call whose name is another one for each time that it comes up in the graph that is being built.

    A graph of TensorFlow 1 may run what has one name at the same time, or in another order on each rank.
    """
    if tf.executing_eagerly() or not call.name:
        return call
    _, place = _counted(call.name)
    return call.named(f"again.{place}") if place else call


def _counted(what: str) -> tuple[Any, int]:
    """The graph that is being built, and how often this has been counted in it before."""
    graph = tf.compat.v1.get_default_graph()
    while isinstance(graph, FuncGraph) and type(graph) is not FuncGraph:  # a branch or a loop: part of its function
        graph = graph.outer_graph
    counter = _counts.setdefault(graph, Counter())
    counter[what] += 1
    return graph, counter[what] - 1


def site() -> str:
    """Return the line of user code we are in: `train.py:12 in train_step`. AutoGraph runs rewritten copies, and knows
    it."""
    if tf.executing_eagerly():
        return call_site()
    for frame in reversed(tf_stack.extract_stack()):
        if is_user_code(frame.filename):
            return f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"
    return ""


def refuse_xla(kind: str) -> None:
    """
    Raises:
        UsageError: XLA will compile the graph, which it cannot with operations that are not its own.
    """
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise UsageError(
            f"{kind} is inside jit_compile=True, and XLA cannot compile collectives: use jit_compile=False for this "
            "function"
        )
