"""Allreduces whose elements travel quantised between the GPUs of several hosts.

NCCL adds up what travels, and cannot add up what has scales. So here it only moves bytes, and kernels do the
arithmetic: `kernels` launches them, `exchange` says who sends what to whom, and `losses` is what quantisation has
taken, in the GPU's memory. Imported when the first tensor is to be quantised.
"""
