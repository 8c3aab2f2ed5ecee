"""Collectives in TensorFlow: eagerly, in tf.function and in TensorFlow 1 graphs, without compiled code.

`call` and `call_rows` execute one collective on several dense tensors, or put it into the graph that is being built.
`reduce_gradients` reduces the gradients of a training step. A graph has one of two mechanisms (`mechanism`). One is an
operation of distrun, registered through TensorFlow's C interface, which works on TensorFlow's memory. The other is
tf.numpy_function, for large tensors, whose results need no copy, and in case a future TensorFlow rejects the operation.

Both run on the CPU. Tensors on a GPU go through host memory: TensorFlow copies them to the CPU for the node, and its
results back where they are used.
"""

from distrun.graphs.tensorflow.calls import call, call_rows, placed
from distrun.graphs.tensorflow.gradients import gather_slices, reduce_gradients
from distrun.graphs.tensorflow.tracing import told_apart

__all__ = ["call", "call_rows", "gather_slices", "placed", "reduce_gradients", "told_apart"]
