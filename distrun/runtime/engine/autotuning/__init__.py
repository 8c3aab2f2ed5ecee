"""Autotuning: on the running job, settings of communication are compared with each other, and the faster one stays.

`policy` says which setting the next step uses, and what remains in the end: pure, fed with the times of steps.
`signed_ranks` is its statistical test. `journal` writes the log and says the one line, `chosen` keeps what programs can
ask for. `turns` lets one tuner work at a time. Ranks that do not tune load the last two only.

Who measures the steps and changes the settings stands elsewhere: `distrun.torch.gradients.tuning` for the buckets of
torch, `distrun.runtime.engine.fusion_tuning` for the fusion of small operations.
"""
