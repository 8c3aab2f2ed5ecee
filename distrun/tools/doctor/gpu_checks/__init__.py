"""The checks of `distrun doctor --gpu`: what makes GPUs of one host slow, wrong or hang.

`steps` takes them one after the other. The probe there asks NVIDIA's library (`nvml`) and the kernel (`kernel`, whose
log `xids` reads), and `measure` starts two programs: `copies` between all pairs of GPUs, and an allreduce over them by
`ranks` as a job has them. `links` knows what connects two GPUs, `path_verdicts` and `state_verdicts` judge. Nothing of
this is imported by a job.
"""
