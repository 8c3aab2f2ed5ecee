"""Reductions whose elements are quantised between the GPUs of several hosts.

NCCL's reductions add elements as they are sent, and cannot add quantised blocks with scales. So here NCCL only moves
bytes, and kernels do the arithmetic. `exchange` divides the elements among rails and hosts, and `steps` queues what a
rank sends, receives and computes. `kernels` launches the kernels, `places` describes elements in several places of
memory, and `residuals` holds the residuals in GPU memory. This package is imported when the first tensor is quantised.
"""
