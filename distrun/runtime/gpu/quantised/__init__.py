"""Reductions whose elements travel quantised between the GPUs of several hosts.

NCCL adds up what travels, and cannot add up what has scales. So here it only moves bytes, and kernels do the
arithmetic. `exchange` says which elements are whose, and `steps` queues what a rank sends, receives and computes;
`kernels` launches the kernels, `places` is about numbers in several places, and `residuals` is what quantisation has
taken, in the GPU's memory. Imported when the first tensor is to be quantised.
"""
