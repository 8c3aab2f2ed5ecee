"""Collectives inside the graphs that TensorFlow and XLA execute: the layer below the faces of TensorFlow, JAX and
Keras.

A face makes a `Call` (of `runtime.collectives.call`) and passes it, with its framework's tensors, to
`graphs.tensorflow` or `graphs.jax`. Eagerly they execute it at once. In a graph they insert a node with the call
encoded as a text. When the node runs, on a thread of the framework, `prepared` plans the requests for its dtypes and
shapes, once, and executes them on the framework's memory as flat storage. `arrays` does the same for numpy arrays with
shapes. If the framework's thread must not wait, `completion` has a thread that does.

`gradients` fuses a list of gradients into few calls by the plan of `tensor_fusion.graph_calls`. `signatures` numbers
lists of variables that all ranks have compared. `compression` has the compressors, which determine the types between
hosts. `low_rank` is PowerSGD. `residuals` keeps the parts of gradients that compression drops, and `error_feedback` is
their form in checkpoints.
"""
