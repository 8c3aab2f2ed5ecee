"""Autotuning: settings of communication are compared with each other on the running job, and the fastest one stays.

`policy` chooses the setting for the next step, and the one that remains in the end. It is pure, and gets the times of
steps. `journal` writes the log and prints one line at the end, `chosen` keeps the results that programs can ask for.
`turns` lets one tuner work at a time. Ranks that do not tune import only the last two.

The code that measures the steps and changes the settings is elsewhere: `distrun.torch.gradients.tuning` for torch's
buckets, `distrun.runtime.engine.fusion_tuning` for the fusion of small operations.
"""
