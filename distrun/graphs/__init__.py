"""Collectives inside the graphs that TensorFlow and XLA execute: the room below the faces of TensorFlow, JAX and Keras.

A face makes a `Call` (of `runtime.collectives.call`) and hands it, with its framework's tensors, to `graphs.tensorflow`
or `graphs.jax`. Eagerly they execute it at once; in a graph they insert a node that carries the call as a text. When
the node runs, the framework shows us its memory on a thread of its own: `prepared` plans the requests for these dtypes
and shapes once and executes them on flat storage, `arrays` does the same for numpy arrays with shapes. Where that
thread must not wait, `completion` does.

`gradients` fuses a list of gradients into few calls by the plan of `tensor_fusion.graph_calls`, `signatures` numbers
lists of variables that all ranks have compared, and `compression` names the types in which tensors travel between
hosts. `low_rank` is PowerSGD. `residuals` are the parts of gradients that compression drops, and `error_feedback` is
their form in
checkpoints.
"""
