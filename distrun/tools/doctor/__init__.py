"""`distrun doctor`: finding out what stands between this machine, the other hosts and a job before the job is started.

`command` is the command line and `run` a run from request to `report`, which `rendering` prints. On each host,
`host_checks` takes one step after the other: first those of the way there (`connect`: none, SSH or srun), then those of
a small program on the host, the `probe`, which is started as an agent would be and asked through a `probe_client`. It
gathers `machine_facts` and `gpus`. With all probes running, `network` has every pair of them measure what is between
them. `verdicts` judges what was found, without any effect, and `shell_commands` gives the commands by which a person
sees the same. `build` is another command, `distrun --check-build`: what works on this machine.
"""
