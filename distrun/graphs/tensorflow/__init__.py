"""Collectives in TensorFlow: eagerly, in tf.function and in graphs of TensorFlow 1, without anything to compile.

`call` and `call_rows` put one collective on several dense tensors wherever the caller is; `reduce_gradients` does what
a training step needs. In a graph there are two ways (`mechanism`): an operation of ours, registered through the C
interface of TensorFlow, which works on TensorFlow's own memory; and tf.numpy_function, for large tensors, whose results
stay where the ranks have formed them, and should a future TensorFlow refuse the operation.

Both run on the CPU. Tensors on a GPU go through host memory: TensorFlow copies them to the CPU for the node, and its
results back where they are used.
"""

from distrun.graphs.tensorflow.calls import call, call_rows, placed
from distrun.graphs.tensorflow.gradients import gather_slices, reduce_gradients
from distrun.graphs.tensorflow.tracing import told_apart

__all__ = ["call", "call_rows", "gather_slices", "placed", "reduce_gradients", "told_apart"]
